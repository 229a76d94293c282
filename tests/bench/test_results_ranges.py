"""README's ranges come out of a report's JSON: sizes searched and verified apart, the worst of them not rounded up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import results_ranges
from fakes import EIGHT_GPUS, Bench, bench_of, latency_of
from scripts import run_script

from autotune.config import Config
from autotune.outcome import Evaluation, Outcome
from autotune.results.crossover import claim


def slower_where_odd(gang: Any, config: Config, seed: int, plan: Any) -> Evaluation:
    """The library takes 100 µs; ours 80, or 105 at sizes that no tile divides."""
    odd = gang.problems[-1].m // 8 % 2 and gang.problems[-1].m > 8
    median = 100.0 if config["mode"] == "bsp" else 105.0 if odd else 80.0
    return Evaluation(Outcome.MEASURED, latency=latency_of(median), error=1e-3)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    bench: Bench = bench_of(EIGHT_GPUS, monkeypatch, tmp_path)
    bench.hook = slower_where_odd
    words = ("--m", "1..1024", "--n", "4096", "--k", "4096", "--trials", "4", "--effort", "quick", "--world-size", "8")
    done = bench.tune("grid", "gemm-reduce-scatter", *words)
    assert done.exit_code == 0, done.output
    assert bench.tune("report", "--format", "json", "-o", str(tmp_path / "report.json")).exit_code == 0
    return tmp_path / "report.json"


def test_a_measured_range_comes_out_of_stored_studies(report: Path) -> None:
    (span,) = results_ranges.spans(json.loads(report.read_text()))
    assert span.axes == ["m"] and sorted(span.searched) == [(8,), (32,), (128,), (512,), (1024,)]
    assert min(span.verified.values()) == 1.0 and max(span.verified.values()) == 1.25, "the library, where it is faster"
    assert span.cells[:4] == ["`gemm-reduce-scatter`, N=4096 K=4096", "M = 8 to 1024", "1.25 to 1.25", "5"]
    done = run_script(results_ranges.__file__, str(report))
    assert done.returncode == 0 and "| 1.25 to 1.25 | 5 | 1.00 |" in done.stdout
    studies = json.loads(report.read_text())
    verified = next(each for each in studies if each.get("verified"))
    (later,) = results_ranges.spans([{**verified, "verified": False}, *studies])
    assert (len(later.searched), len(later.verified)) == (6, len(span.verified) - 1), "searched since"


def test_a_range_that_loses_anywhere_does_not_claim_otherwise() -> None:
    assert "never below 0.99 at 2 verified" in claim("m=1 to 8", [1.1], [0.998, 1.2], "NCCL")
    assert claim("m=1 to 8", [], []) == ""
