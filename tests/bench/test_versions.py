"""Two checkouts compared: the same config on both; a slower kernel is told, what one lacks is passed over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import versions

ROOT = Path(__file__).parents[2]


def compare(monkeypatch: pytest.MonkeyPatch, *words: str, before: Path = ROOT) -> int:
    monkeypatch.setattr("sys.argv", ["versions.py", str(before), "--sizes", "1", "--turns", "2", *words])
    return versions.main()


@pytest.mark.slow
def test_ranks_of_two_checkouts_measure_in_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("autotune", "bench"):  # with what is compiled of them
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.json.gz"))
    package = tmp_path / "autotune" / "__init__.py"
    package.write_text(package.read_text().replace('problem": "FlashDecode"', 'problem": "Flash"'))
    monkeypatch.setattr(versions, "ALLOWED", 0.0)
    assert compare(monkeypatch, "--toy", "--world-size", "1", "--only", "fd", "ar-8192", before=tmp_path) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("| ar-8192 m=8 | ")
    assert "fd: not compared" in printed.err
