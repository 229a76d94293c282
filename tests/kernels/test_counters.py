"""Counters are never reset between calls: a workspace may live for as many calls as there are, and then some."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from every_mode import check_all, whole
from ranks_of_functions import run_ranks

from autotune.config import Config
from autotune.kernels.primitives.counters import EPOCH_SHIFT, finish, finish_unordered, read_epoch
from autotune.machine import machine
from autotune.ranks.evaluation import MeasurePlan
from autotune.workloads import workload

pytestmark = pytest.mark.skipif(not machine().is_interpreter, reason="the counters are aged in interpreted ranks")

AGED = Path(__file__).parent / "aged.py"
GATHER, SCATTER = (workload(f"{AGED}:{name}") for name in ("Gather", "Scatter"))

TILE = {
    "mode": "push", "block_m": 16, "block_n": 32, "block_k": 32, "split_k": 1, "group_m": 2, "num_warps": 4,
    "num_stages": 2, "loads": "pointer", "schedule": "tile", "peer_order": "rotate",
}  # fmt: skip
PUSH = Config({
    **TILE, "preload_b": False, "transfer_rows": 16, "k_chunks": 1, "comm_programs": 4, "copy_kib": 2,
    "push_site": "same_launch", "head_start": 0,
})  # fmt: skip
PUSHED = Config({**TILE, "transfer_tiles": 2, "signals": "at_once"})
COPIES = Config({"mode": "copy_engine", "transfer_rows": 16, "gemm_streams": 1, "sum_block": 512, "sum_warps": 4})
OWN = Config({"mode": "custom_collective", "sum_block": 512, "sum_warps": 4})
CALLS = MeasurePlan(warmup=1, screen=1, iterations=1)
"""With the check before and one burst after it six calls: three before the counters wrap around, three after."""


def of_mode(mode: str, **values: str | int) -> Config:
    names = {dimension.name for dimension in GATHER.space.dimensions_of(mode)}
    return Config({name: value for name, value in PUSH.items() if name in names} | {"mode": mode, **values})


@pytest.mark.parametrize(("layout", "m", "every"), [("rows", 32, True), ("k", 24, False), whole("k", 24, True)])
def test_results_are_right_before_and_after_the_counters_wrap_around(layout: str, m: int, every: bool) -> None:
    problem = GATHER.problem_type(m=m, n=2 * 24, k=2 * 32, layout=layout, world_size=2)
    others = [of_mode(mode) for mode in ("pull_staged", "pull")]
    words = {"protocol": "sentinel", "peer_order": "fanout"} if layout == "k" else {"protocol": "signal"}
    others.append(of_mode("custom_collective", **words))
    configs = [PUSH, PUSH.replace(push_site="same_stream"), *others]
    if layout == "rows":
        copies = of_mode("copy_engine", gemm_streams=1, copies="pulled", chunk_sizes="even")
        configs += [copies, copies.replace(copies="pushed")]
    check_all(GATHER, problem, configs if every else [configs[0], configs[-1]], set(), CALLS)


def test_reduced_results_are_right_before_and_after_the_counters_wrap_around() -> None:
    problem = SCATTER.problem_type(m=2 * 32, n=40, k=2 * 64, world_size=2)
    pull = PUSHED.replace(mode="pull", schedule="persistent", split_k=2, signals="next_turn")
    check_all(SCATTER, problem, [PUSHED, pull, COPIES, OWN], set(), CALLS)


def test_a_launch_of_millions_of_programs_is_one_epoch(tmp_path: Path) -> None:
    """131072 tokens times 28672 columns are seven million tiles of 16 x 32."""
    programs = [1, 1000, 131072 // 16 * 28672 // 32, 1 << 25]
    (found,) = run_ranks(__file__, "counted", 1, tmp_path, argument=programs)
    assert found == [[5, 1, 6, 0, 5, 6, 0]] * len(programs)


EPOCH = 5


@triton.jit
def count_out_kernel(epoch_counter, programs, found, ORDERED: tl.constexpr):
    """Store the epoch, and whether this program, which must be the only one left, was the last to finish."""
    tl.store(found, read_epoch(epoch_counter))
    if ORDERED:
        tl.store(found + 1, finish(epoch_counter, programs).to(tl.int64))
    else:
        finish_unordered(epoch_counter, programs, True)


def counted(argument: list[int]) -> list[list[int]]:
    """All programs but one of a launch have finished: the epoch, if that was the last, both after it; both ways."""
    answers = []
    for programs in argument:
        answer = []
        for ordered in (True, False):
            found = torch.zeros(2, dtype=torch.int64)
            counter = torch.tensor([(EPOCH << EPOCH_SHIFT.value) + programs - 1])
            count_out_kernel[(1,)](counter, programs, found, ordered)
            after, left = divmod(int(counter), 1 << EPOCH_SHIFT.value)
            answer += [*found.tolist()[: 1 + ordered], after, left]
        answers.append(answer)
    return answers
