"""LL words that several threads of a program hold: all threads go on with one and the same word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from compile_worker import DEADLINE, Compilers, assembly
from ranks_of_functions import run_ranks

from autotune.config import Config
from autotune.heap import open_heap
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.contract import Setup
from autotune.kernels.moe.routing import Routing, drawn_routing, planned
from autotune.kernels.moe_combine.launch import KERNELS
from autotune.kernels.moe_combine.modes import SPACE
from autotune.kernels.moe_combine.problem import MoeCombine
from autotune.kernels.primitives.counters import EPOCH_SHIFT
from autotune.machine import H100, machine
from autotune.task import Task

PROBLEM = MoeCombine(tokens=64, hidden=2048, experts=8, top_k=1, world_size=1)
"""A step of 1 KiB has 256 words."""
CONFIG = Config({
    "mode": "one_shot", "protocol": "ll", "comm_programs": 64, "transfer_tokens": 1, "split": 1, "copy_kib": 1,
    "num_warps": 16,
})  # fmt: skip
CALLS = 20_000


def test_words_of_several_threads_are_read_again_behind_a_barrier(compilers: Compilers) -> None:
    polled = {}
    for warps in (8, 16):
        config = CONFIG.replace(num_warps=warps)
        SPACE.check(config, Task(PROBLEM, H100))
        (text,) = compilers.submit(H100, assembly, Task(PROBLEM, H100), config).result(DEADLINE)
        _, *after = re.split(r"@%p\d+ ld\.volatile\.global\S*\.b64", text)
        polled[warps] = ["bar.sync" in each for each in after]
    assert len(polled[8]) == 2 and len(polled[16]) == 3, "polled twice in the source; and read once more"
    assert polled[16][1]


@pytest.mark.gpu(1)
def test_each_call_has_its_own_rows(tmp_path: Path) -> None:
    """Unless they are read again, 850 and 1834 of 20000 calls gave an earlier call's; since then none (H200)."""
    assert run_ranks(__file__, "wrong_calls", 1, tmp_path, gpu=True) == [0]


def test_a_flag_is_of_one_launch_when_the_epoch_wraps_around(tmp_path: Path) -> None:
    """As an int32, and in the epoch counter. Places of rows lie in one slot: successive flags must differ."""
    ends = [1 << 32, 1 << (63 - EPOCH_SHIFT.value)]
    assert run_ranks(__file__, "calls_around_ends", 1, tmp_path, argument=ends) == [[[True] * 4] * len(ends)]


def calls_around_ends(ends: list[int]) -> list[list[bool]]:
    heap = open_heap(1 << 20, dist.new_group(backend="gloo"))
    return [_calls_around(end, heap) for end in ends]


def _calls_around(end: int, heap: SymmetricHeap) -> list[bool]:
    """True for each right call around an epoch's end; tokens have experts that they lacked in the launch before."""
    problem = MoeCombine(tokens=4, hidden=64, experts=2, top_k=2, world_size=1, dtype="fp32")
    config = Config({
        "mode": "push", "peer_order": "rotate", "comm_programs": 1, "transfer_tokens": 1, "split": 1, "copy_kib": 1,
        "num_warps": 4,
    })  # fmt: skip
    tensors = KERNELS.tensors(problem, heap.allocate, lambda shape, dtype: torch.zeros(shape, dtype=dtype))
    setup = Setup(KERNELS, Task(problem, machine()), config, heap, 1 << 14)
    run, scratch, right = setup.bind(tensors), setup.scratch, []
    assert scratch is not None
    scratch.epoch_counter.fill_((end - 2) << EPOCH_SHIFT.value)
    for counters in (scratch.placed, scratch.arrivals):
        counters.fill_(((end // 2 - 1 + (1 << 31)) % (1 << 32)) - (1 << 31))
    for call in range(4):
        some = 1 if call % 2 else -1
        ids = torch.tensor([[0, some], [some, 0], [0, 1], [-1, -some]], dtype=torch.int32)
        plan = planned(problem, Routing(ids[None], torch.ones(1, 4, 2)), 0)
        for to, what in ((tensors.offsets, plan.offsets), (tensors.pairs, plan.pairs), (tensors.ids, ids)):
            to.copy_(what)
        tensors.row_gates.fill_(1.0)
        tensors.rows.fill_(1.0 + call)
        run()
        right.append(torch.equal(tensors.out, ((ids >= 0).sum(1, keepdim=True) * (1.0 + call)).expand(4, 64)))
    return [each and not setup.timed_out() for each in right]


def wrong_calls(argument: Any = None) -> int:
    heap = open_heap(64 << 20, dist.new_group(backend="gloo"))

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=heap.device)

    tensors = KERNELS.tensors(PROBLEM, heap.allocate, empty)
    run = Setup(KERNELS, Task(PROBLEM, machine()), CONFIG, heap, 1 << 26).bind(tensors)
    routing = drawn_routing(PROBLEM, heap.device, 1)
    plan = planned(PROBLEM, routing, 0)
    for to, what in (
        (tensors.offsets, plan.offsets), (tensors.pairs, plan.pairs), (tensors.ids, routing.ids[0]),
        (tensors.row_gates, torch.ones_like(plan.gates)),
    ):  # fmt: skip
        to.copy_(what)
    wrong = torch.zeros((), dtype=torch.int64, device=heap.device)
    for call in range(CALLS):
        tensors.rows.fill_(1 + call % 7)
        run()
        wrong += (tensors.out != 1 + call % 7).any()
    return int(wrong)
