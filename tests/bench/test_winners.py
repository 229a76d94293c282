"""The winners' table: nothing is measured in vain, and what failed is said in words."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import winners

GRID = ("gemm-all-reduce", "--m", "4,8")


def answering(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], code: int) -> None:
    done = subprocess.CompletedProcess([], code, json.dumps(rows) if rows else "")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: done)


def test_ranks_of_rivals_look_the_winner_up_in_the_database_that_the_search_wrote(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it each rival stood there alone, without its ratio to the winner."""
    database, seen = str(tmp_path / "winners.db"), []
    rows = [{"latency": {"median": 5.0}}]
    answering(monkeypatch, rows, 0)
    monkeypatch.setattr(winners, "measure_rivals", lambda *_: seen.append(os.environ["AUTOTUNE_DB"]))
    monkeypatch.setattr(winners, "table", lambda rows: "")
    monkeypatch.setattr("sys.argv", ["winners.py", *GRID, "--db", database])
    monkeypatch.setenv("AUTOTUNE_DB", "another.db")
    winners.main()
    assert seen == [database]


def test_every_baseline_that_a_ratio_may_be_of_has_a_column() -> None:
    latency, others = {"median": 100.0, "low": 99.0, "high": 101.0}, {"bsp eager": 1.3, "bsp fused norm graph": 0.86}
    row = {
        "sizes": {"m": 16}, "latency": latency, "limits": {}, "limit_share": None, "config": {"mode": "one_shot"},
        "baselines": {name: {**latency, "median": 100.0 * ratio} for name, ratio in others.items()}, "trials": 9,
        "speedups": {name: {"value": ratio, "error": 0.01} for name, ratio in others.items()},
    }  # fmt: skip
    heading, _, cells = (line.split(" | ") for line in winners.table([row]).splitlines()[:3])
    named = dict(zip(heading, cells, strict=True))
    assert named["bsp fused norm graph, µs"] == "86.0" and named["over the faster"] == "**0.86** ± 0.01"
