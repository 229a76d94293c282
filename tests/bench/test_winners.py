"""The winners' table: nothing is measured in vain, and what failed is said in words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import winners

GRID = ("gemm-all-reduce", "--m", "4,8")


def test_ranks_of_rivals_look_the_winner_up_in_the_database_that_the_search_wrote(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it each rival stood there alone, without its ratio to the winner."""
    database, seen = str(tmp_path / "winners.db"), []
    done = subprocess.CompletedProcess([], 0, '[{"latency": {"median": 5.0}}]')
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: done)
    monkeypatch.setattr(winners, "measure_rivals", lambda *_: seen.append(os.environ["AUTOTUNE_DB"]))
    monkeypatch.setattr(winners, "table", lambda rows: "")
    monkeypatch.setattr("sys.argv", ["winners.py", *GRID, "--db", database])
    monkeypatch.setenv("AUTOTUNE_DB", "another.db")
    winners.main()
    assert seen == [database]
