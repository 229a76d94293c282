"""Repeatability: claimed and true latencies side by side, the spread of the true ones, and a run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repeatability import AIMS, summary, summed_up

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench/repeatability.py"


def entry(median: float, mode: str) -> dict[str, Any]:
    speedups = {"bsp eager": {"value": 130 / median, "error": 0.0}, "bsp graph": {"value": 120 / median, "error": 0.0}}
    return {
        "latency": {"median": median}, "baselines": {}, "speedups": speedups, "config": {"mode": mode}, "trials": 40,
    }  # fmt: skip


def test_the_spread_is_that_of_the_true_latencies() -> None:
    tuned = [entry(100.0, "push"), entry(90.0, "pull")]
    true = {
        "winners": [[100.0, 102.0, 101.0], [102.0, 104.04, 103.02]],
        "baselines": {"bsp eager": [130.0] * 3, "bsp graph": [120.0, 122.4, 121.2]},
    }
    found = summary("rs-512", {"m": 512}, 12, tuned, true)
    assert found["spread"] == pytest.approx(0.02) and found["aim"] == AIMS[12] == 0.02
    assert [row["true"] for row in found["rows"]] == [101.0, 103.02]
    assert [row["claimed"] for row in found["rows"]] == [100.0, 90.0]
    assert [row["claimed_speedup"] for row in found["rows"]] == [1.2, pytest.approx(120 / 90)], "over the faster one"
    assert found["rows"][0]["true_speedup"]["value"] == pytest.approx(1.2)
    assert found["rows"][0]["true_speedup"]["error"] == pytest.approx(0, abs=1e-9), "drift cancels in paired rounds"
    assert "| 1 | 90.0 | 103.0 | 1.333 | 1.176 ± 0.000 | pull | 40 |" in summed_up(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_ends_with_a_spread(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), "--toy", "--seeds", "2", "--only", "rs-512", "--folder", str(tmp_path)]
    done = subprocess.run([*words, "--json", str(tmp_path / "found.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert [row["seed"] for row in found["rows"]] == [0, 1] and found["spread"] >= 0
