"""Two checkouts compared: a config in each one's words; a slower kernel is told, what one lacks is passed over."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import versions

ROOT = Path(__file__).parents[2]

OLD = {
    "mode": "push", "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2,
    "split_k": 1, "preload_b": False, "k_chunks": 1, "loads": "pointer", "schedule": "tile", "unit_rows": 16,
    "comm_programs": 2, "copy_kib": 4, "peer_order": "fanout", "push_site": "same_launch", "head_start": 0,
}  # fmt: skip
"""Of a version that said ``unit_rows`` for ``transfer_rows``."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Checkouts that answer at once: what each was asked for, and its microseconds, which a test may change."""
    state: dict[str, Any] = {"before": [], "now": [], "order": [], "microseconds": {"before": 100.0, "now": 100.0}}

    def run(words: list[str], env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        checkout = "now" if env["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT) else "before"
        command = words[3:]
        state[checkout].append(command)
        if "--config" in command:
            state["order"].append(checkout)
        if "flash-decode" in command:
            return subprocess.CompletedProcess(words, 2, "", "tune: error: no such workload")
        if command[0] == "lookup":
            return subprocess.CompletedProcess(words, 0, json.dumps({"config": OLD}), "")
        answer = {"latency": {"median": state["microseconds"][checkout]}}
        return subprocess.CompletedProcess(words, 0, json.dumps(answer), "")

    monkeypatch.setattr(subprocess, "run", run)
    return state


def compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> int:
    (tmp_path / "autotune" / "cli").mkdir(parents=True)
    monkeypatch.setattr("sys.argv", ["versions.py", str(tmp_path), "--sizes", "1", "--turns", "2", *words])
    return versions.main()


def configs(commands: list[list[str]]) -> list[dict[str, Any]]:
    return [json.loads(command[command.index("--config") + 1]) for command in commands if "--config" in command]


def test_each_checkout_runs_the_config_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(monkeypatch, tmp_path, "--only", "ag-rows", "fd") == 0
    assert configs(asked["before"]) == [OLD, OLD]
    now = configs(asked["now"])
    assert asked["order"] == ["before", "now", "now", "before"], "a drift of the clocks meets both alike"
    assert [each["transfer_rows"] for each in now] == [16, 16] and not any("unit_rows" in each for each in now)
    printed = capsys.readouterr()
    assert "| ag-rows m=16 | 100.0 | 100.0 | 1.000 ± 0.000 |" in printed.out
    assert "fd: not compared: tune: error: no such workload" in printed.err


def test_a_slower_kernel_is_told(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked["microseconds"]["now"] = 102.0
    assert compare(monkeypatch, tmp_path, "--only", "ag-rows") == 1
    printed = capsys.readouterr()
    assert "| 0.980 ± 0.000 |" in printed.out and "slower than 0.99 of before: 1" in printed.err


def test_a_table_without_a_row_is_no_success(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(monkeypatch, tmp_path, "--only", "fd") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "nothing was compared"


@pytest.mark.parametrize(
    ("words", "told"), [(("--turns", "1"), "at least 2"), (("--sizes", "0"), "a whole number from 1 on")]
)
def test_what_cannot_be_compared_is_refused(
    words: tuple[str, str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as end:
        compare(monkeypatch, tmp_path, *words)
    assert end.value.code == 2 and told in capsys.readouterr().err


def test_a_folder_that_is_no_checkout_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["versions.py", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        versions.main()
    assert end.value.code == 2 and "git worktree add" in capsys.readouterr().err
