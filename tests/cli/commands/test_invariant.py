"""``tune --invariant``: one entry for all sizes, and its price; what is refused is in screens/refusals.txt."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import Bench
from same_rows import Rows

from autotune.cli import session
from autotune.task import Task
from autotune.workloads import Workload

SIZES = ("--n", "28672", "--k", "8192", "--world-size", "8")
TUNE = ("all-gather-gemm", *SIZES, "--trials", "12", "--effort", "quick")


@pytest.fixture
def bench(gpus: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    def make_gang(workload: Workload, task: Task[Any], heap_bytes: int = 0) -> Rows:
        gang = Rows(task.problem)
        gang.largest = 512
        return gang

    monkeypatch.setattr(session, "make_gang", make_gang)
    return gpus


def test_one_entry_answers_for_every_size_and_tells_its_price(bench: Bench) -> None:
    tuned = bench.tune(*TUNE, "--invariant", "--m", "1..512")
    assert tuned.exit_code == 0, tuned.stderr
    where = "in the sum over m = 8, 32, 128, 512"
    assert f"{where}; 4 of 4 sizes have no winner of their own" in words_of(tuned.stdout)
    look = ("lookup", "all-gather-gemm", *SIZES)
    assert len({bench.tune(*look, "--invariant", "--m", m).stdout for m in ("8", "504", "4096")}) == 1
    assert "predicted" in bench.tune(*look, "--m", "512").stderr
    own = [bench.json(*TUNE, "--m", m)["microseconds"] for m in ("8", "32", "128", "512")]
    ours = bench.json(*TUNE, "--invariant", "--m", "512")["microseconds"]
    price = f"{ours / sum(own):.2f} times as long as each size's own winner, {where}"
    assert price in words_of(bench.tune(*TUNE, "--invariant", "--m", "512").stdout)
    page = bench.tune("report", "all-gather-gemm", *SIZES, "--m", "512", "--invariant", "--format", "md")
    assert f"The same bits at all sizes: {price}." in page.stdout, page.stderr


def words_of(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())
