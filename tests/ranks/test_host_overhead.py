"""An operator's host overhead, as the ranks take it: by calling it, in the ways in which bound calls are timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.machine import machine
from autotune.outcome import HostOverhead, Outcome
from autotune.ranks.evaluation import AllRanks
from autotune.ranks.gang import Gang
from autotune.ranks.measure import WARM_CALLS
from autotune.ranks.protocol import Done, Failed, MeasureOverhead, Request
from autotune.runtime import WARM_CALL
from autotune.task import Task
from autotune.workloads import workload


def test_ranks_call_the_door_that_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter its time says nothing, and no warm call is one without a price."""
    monkeypatch.setenv("CALL_MARKS", str(tmp_path))
    found = workload("gemm_all_reduce")
    problem = found.problem_type(m=16, n=64, k=64, world_size=2)
    with Gang(found, Task(problem, machine()), warm_call="overhead_spy:spy") as gang:
        assert gang.measure_overhead() is None
        assert {file.name: len(file.read_text()) for file in tmp_path.iterdir()} == {
            "rank 0": WARM_CALLS, "rank 1": WARM_CALLS,
        }  # fmt: skip
        for gang.warm_call in (WARM_CALL, ""):
            assert gang.measure_overhead() is None


@pytest.mark.parametrize(
    ("answers", "price"),
    [
        ([Done("", times=(9.0, 11.0, 30.0), host=(6.0,)), Done("", times=(8.0, 14.0, 15.0), host=(5.0,))],
         HostOverhead(6.0, 14.0)),
        ([Done("", times=(-2.0, -1.0, 0.5), host=(-0.1,))], HostOverhead(0.0, 0.0)),
        ([Done(""), Done("")], None),
        (Failed(Outcome.CRASHED, "rank 1 died"), None),
    ],
    ids=["the slowest rank", "never less than nothing", "no operator", "a failure"],
)  # fmt: skip
def test_the_slowest_rank_s_door_counts(answers: list[Done] | Failed, price: HostOverhead | None) -> None:
    asked: list[Request] = []

    class Ranks(AllRanks):
        warm_call = WARM_CALL

        def everyone(self, request: Request, phase: str) -> list[Done] | Failed:
            asked.append(request)
            return answers

    assert Ranks().measure_overhead() == price
    assert [each.warm_call for each in asked if isinstance(each, MeasureOverhead)] == [WARM_CALL]
