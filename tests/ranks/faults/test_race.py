"""Planted races: a wait that is missing, and one that is so later on, which only other inputs show. Both are caught."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from autotune.config import Config
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.primitives import transfer
from autotune.machine import machine
from autotune.outcome import Evaluation, Outcome
from autotune.problem import Problem
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import Workload, from_reference, workload
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmWorkload

RUNS = 2 if machine().is_interpreter else 20
CAUGHT = 0.8
"""Share of the runs: which rank is late is chance on GPUs; elsewhere each of two is once."""

PUSH = Config({
    "mode": "push", "block_m": 16, "block_n": 16, "block_k": 16, "group_m": 1, "num_warps": 4, "num_stages": 2,
    "loads": "pointer", "schedule": "tile", "transfer_rows": 16, "comm_programs": 1, "copy_kib": 2,
    "peer_order": "rotate", "push_site": "same_launch", "head_start": 0, "split_k": 1,
    "preload_b": False, "k_chunks": 1,
})  # fmt: skip


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", __file__)


def evaluations(
    found: Workload, problem: Problem, config: Config, plan: MeasurePlan, runs: int = RUNS
) -> list[Evaluation]:
    with Gang(found, Task(problem, machine())) as gang:
        return [gang.evaluate(config, seed, plan) for seed in range(runs)]


def check_caught(found: list[Evaluation]) -> None:
    wrong = [each for each in found if each.outcome is Outcome.WRONG_RESULT]
    assert len(wrong) >= CAUGHT * len(found), [(each.outcome, each.reason) for each in found]


@pytest.mark.skipif(not machine().is_interpreter, reason="the problem is one for interpreted ranks")
def test_a_missing_wait_is_caught_on_interpreted_ranks() -> None:
    racing, sound = workload("racing"), workload("all_gather_gemm")
    problem = racing.problem_type(m=32, n=32, k=32, world_size=2)
    once = MeasurePlan(warmup=0, screen=1, iterations=1)
    check_caught(evaluations(racing, problem, PUSH, once))
    assert {each.outcome for each in evaluations(sound, problem, PUSH, once, 1)} == {Outcome.MEASURED}


@pytest.mark.gpu(2)
def test_a_missing_wait_is_caught_on_gpus() -> None:
    racing, sound = workload("racing"), workload("all_gather_gemm")
    problem = racing.problem_type(m=1024, n=4096, k=2048, world_size=2)
    config = PUSH.replace(block_m=128, block_n=128, block_k=64, transfer_rows=128, comm_programs=8, num_warps=8)
    plan = MeasurePlan(warmup=2, screen=5, iterations=5)
    assert racing.space.violation(config, Task(problem, machine())) is None
    check_caught(evaluations(racing, problem, config, plan))
    assert {each.outcome for each in evaluations(sound, problem, config, plan, 3)} == {Outcome.MEASURED}


ALL_GATHER = Path(__file__).parents[3] / "docs" / "examples" / "all_gather.py"
WAIT = "heap.wait_each(counters, sources < WORLD, epoch + 1, peers)"


def users_own(folder: Path, *, waits: bool) -> Workload:
    """The example of an operation of a user's own; or one that waits for nobody from its fifth launch on."""
    text = ALL_GATHER.read_text()
    assert text.count(WAIT) == 1
    file = folder / f"waits_{waits}.py"
    file.write_text(text if waits else text.replace("epoch + 1, peers", "tl.minimum(epoch + 1, 4), peers", 1))
    return from_reference(f"{file}:AllGatherWorkload")


@pytest.mark.skipif(not machine().is_interpreter, reason="the fifth launch is in the recheck of interpreted ranks")
@pytest.mark.parametrize("waits", [True, False])
def test_stale_data_in_a_users_operation_are_caught(tmp_path: Path, waits: bool) -> None:
    found = users_own(tmp_path, waits=waits)
    problem = found.problem_type(rows=2, columns=1024, world_size=2)
    once = MeasurePlan(warmup=0, screen=1, iterations=1)
    ended = evaluations(found, problem, found.default_config(Task(problem, machine())), once, 1 if waits else 2)
    expected = Outcome.MEASURED if waits else Outcome.WRONG_RESULT
    assert {each.outcome for each in ended} == {expected}, [(each.outcome, each.reason) for each in ended]


@triton.jit
def pass_by(arrivals, source, first, last, rows, transfer_rows, target, peers, PROXY_FENCE: tl.constexpr):
    return (target * 0).to(tl.int32)


@triton.jit
def pass_each_by(
    arrivals, first_source, last_source, apart, first, last, rows, transfer_rows, target, peers, WORLD: tl.constexpr,
    PROXY_FENCE: tl.constexpr,
):  # fmt: skip
    return (target * 0).to(tl.int32)


@dataclass(frozen=True, kw_only=True)
class Racing(AllGatherGemm):
    workload = "racing"


class RacingWorkload(AllGatherGemmWorkload):
    name, problem_type = "racing", Racing

    def operation(self, *arguments: Any) -> Any:
        """Set up on this rank, whose process is the gang's: nobody else's kernels lose their waits."""
        transfer.wait_for_rows, transfer.wait_for_rows_of_each = pass_by, pass_each_by
        return super().operation(*arguments)


WORKLOAD = RacingWorkload()
