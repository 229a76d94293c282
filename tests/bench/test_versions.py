"""Two checkouts compared: the same config on both; a slower kernel is told, what one lacks is passed over."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import versions

ROOT = Path(__file__).parents[2]

CONFIG = {
    "mode": "push", "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2,
    "split_k": 1, "preload_b": False, "k_chunks": 1, "loads": "pointer", "schedule": "tile", "transfer_rows": 16,
    "comm_programs": 2, "copy_kib": 4, "peer_order": "fanout", "push_site": "same_launch", "head_start": 0,
}  # fmt: skip
"""The earlier checkout's default."""


class Answering(versions.Checkout):
    """A checkout of two ranks that answers at once, and what it was asked for."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self._order = name, order
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.times = [100.0, 90.0]

    def ask(self, do: str, **arguments: Any) -> list[Any]:
        if arguments.get("workload") == "flash_decode":
            raise versions.Refused("no such workload")
        self.asked.append((do, arguments))
        if do == "sample":
            self._order.append(self.name)
        return {"default": [CONFIG, CONFIG], "make": [None, None], "sample": self.times}[do]

    @property
    def configs(self) -> list[dict[str, Any]]:
        return [arguments["config"] for do, arguments in self.asked if do == "make"]

    def end(self) -> None:
        pass


@pytest.fixture
def checkouts(monkeypatch: pytest.MonkeyPatch) -> tuple[Answering, Answering]:
    order: list[str] = []
    made = Answering("before", order), Answering("now", order)

    @contextlib.contextmanager
    def both(before: Path, world_size: int) -> Iterator[tuple[Answering, Answering]]:
        yield made

    monkeypatch.setattr(versions, "both", both)
    return made


def compare(monkeypatch: pytest.MonkeyPatch, *words: str, before: Path = ROOT) -> int:
    monkeypatch.setattr("sys.argv", ["versions.py", str(before), "--sizes", "1", "--turns", "2", *words])
    return versions.main()


def test_a_slower_kernel_is_told(
    monkeypatch: pytest.MonkeyPatch, checkouts: tuple[Answering, Answering], capsys: pytest.CaptureFixture[str]
) -> None:
    checkouts[1].times = [90.0, 102.0]  # of two ranks the slower one counts
    assert compare(monkeypatch, "--toy", "--only", "ag-rows") == 1
    printed = capsys.readouterr()
    assert "| 100.0 | 102.0 | 0.980 ± 0.000 |" in printed.out and "slower than 0.99 of before: 1" in printed.err


def test_ranks_of_two_checkouts_measure_in_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of real ones, the earlier of which lacks an operator."""
    shutil.copytree(ROOT / "autotune", tmp_path / "autotune", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("__pycache__", "recordings"))
    package = tmp_path / "autotune" / "__init__.py"
    package.write_text(package.read_text().replace('"FlashDecode": "autotune.', '"Flash": "autotune.'))
    monkeypatch.setattr(versions, "ALLOWED", 0.0)
    assert compare(monkeypatch, "--toy", "--world-size", "1", "--only", "fd", "ar-8192", before=tmp_path) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("| ar-8192 m=2 | ")
    assert "fd: not compared: module 'autotune' has no attribute 'FlashDecode'" in printed.err
