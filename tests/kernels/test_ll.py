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
from autotune.kernels.launching.contract import Setup
from autotune.kernels.moe.routing import drawn_routing, planned
from autotune.kernels.moe_combine.launch import KERNELS
from autotune.kernels.moe_combine.problem import MoeCombine
from autotune.machine import H100, machine
from autotune.search_spaces.moe_combine import SPACE

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
        SPACE.check(config, PROBLEM, H100)
        (text,) = compilers.submit(H100, assembly, H100, PROBLEM, config).result(DEADLINE)
        _, *after = re.split(r"ld\.volatile\.global\S*\.b64", text)
        polled[warps] = ["bar.sync" in each for each in after]
    assert len(polled[8]) == 2 and len(polled[16]) == 3, "polled twice in the source; and read once more"
    assert polled[16][1]


@pytest.mark.gpu(1)
def test_each_call_has_its_own_rows(tmp_path: Path) -> None:
    """Unless they are read again, 850 of 20000 calls give some of an earlier call's (one H200)."""
    assert run_ranks(__file__, "wrong_calls", 1, tmp_path, gpu=True) == [0]


def wrong_calls(argument: Any = None) -> int:
    """Calls that give anything but their own rows, each call's another number."""
    heap = open_heap(64 << 20, dist.new_group(backend="gloo"))

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=heap.device)

    tensors = KERNELS.tensors(PROBLEM, heap.allocate, empty)
    run = Setup(KERNELS, PROBLEM, CONFIG, machine(), heap, 1 << 26).bind(tensors)
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
