"""Words that say themselves that they have arrived, LL's and sentinels: whatever is in them, for all who read them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from compile_worker import DEADLINE, Compilers, assembly
from ranks_of_functions import run_ranks
from two_ranks import EVERYWHERE

from autotune.config import Config
from autotune.heap import device, open_heap
from autotune.heap.arena import SymmetricHeap
from autotune.heap.status import new_status
from autotune.kernels.launching.contract import Setup
from autotune.kernels.moe.routing import Routing, drawn_routing, planned
from autotune.kernels.moe_combine.launch import KERNELS
from autotune.kernels.moe_combine.modes import SPACE
from autotune.kernels.moe_combine.problem import MoeCombine
from autotune.kernels.primitives.counters import EPOCH_SHIFT
from autotune.kernels.primitives.sentinel import sentinel_bits, sentinel_empty, sentinel_take, sentinel_wait
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


@pytest.mark.parametrize("gpu", EVERYWHERE)
def test_what_is_sent_arrives_and_leaves_empty_words_behind_and_what_is_not_times_out(tmp_path: Path, gpu: str) -> None:
    ranks = run_ranks(__file__, "exchanged", 2, tmp_path, gpu=gpu)
    assert [found.pop("missing") for found in ranks] == [4, 0]
    for found in ranks:
        assert len(found) == 8
        for kernel, counted in found.items():
            assert counted["right"] == counted["all"], (kernel, counted)
            assert counted["full"] == counted["left"], (kernel, counted)
            assert counted["late"] == 0


WORDS = 256
VALUES = (0, -91, 1, -(1 << 15), -92, 0x7F80, 0, -91)
"""The bits of what is sent, in turn: mostly what could be taken for an empty word."""
LAUNCHES = 7
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HALVES = ((False, False), (True, False), (False, True))
BITS = {2: torch.int16, 4: torch.int32}


@triton.jit
def taking_kernel(mine, inbox, out, epoch, rank, heap_bases, status, spin_limit, WORDS: tl.constexpr):
    """Send a part, and take the peer's, of which we are the only reader: two slots."""
    peers = device.Peers(rank, heap_bases, status, spin_limit)
    place = inbox + (epoch & 1) * WORDS + tl.arange(0, WORDS)
    here = tl.arange(0, WORDS)
    device.store(place, sentinel_bits(tl.load(mine + here)), rank, 1 - rank, heap_bases)
    tl.store(out + here, sentinel_take(place, here < WORDS - 1, peers), mask=here < WORDS - 1)


@triton.jit
def taking_pairs_kernel(mine, inbox, out, epoch, rank, heap_bases, status, spin_limit, WORDS: tl.constexpr):
    """``taking_kernel`` of words of 16 bits that are polled two at a time."""
    peers = device.Peers(rank, heap_bases, status, spin_limit)
    here, pair = tl.arange(0, WORDS), tl.arange(0, WORDS // 2)
    place = inbox + (epoch & 1) * WORDS
    device.store(place + here, sentinel_bits(tl.load(mine + here)), rank, 1 - rank, heap_bases)
    taken = sentinel_take(place.to(tl.pointer_type(tl.int32)) + pair, pair < WORDS // 2, peers, PAIRS=True)
    tl.store(out.to(tl.pointer_type(tl.int32)) + pair, taken)


@triton.jit
def waiting_kernel(mine, inbox, out, epoch, rank, heap_bases, status, spin_limit, WORDS: tl.constexpr):
    """The first program sends, and empties what the launch before has read; each reads all: three slots."""
    peers = device.Peers(rank, heap_bases, status, spin_limit)
    pid = tl.program_id(0)
    here = tl.arange(0, WORDS)
    place = inbox + epoch % 3 * WORDS + here
    if pid == 0:
        device.store(place, sentinel_bits(tl.load(mine + here)), rank, 1 - rank, heap_bases)
        sentinel_empty(inbox + (epoch + 2) % 3 * WORDS + here, here < WORDS)
    tl.store(out + pid * WORDS + here, sentinel_wait(place, here < WORDS, peers))


def exchanged(_: None) -> dict[str, Any]:
    """By kernel and type: launches whose result is the peer's part bit by bit, and the inbox afterwards."""
    heap = open_heap(1 << 20, dist.new_group(backend="gloo"))
    found: dict[str, Any] = {}
    for kernel, slots, programs, left in (
        (taking_kernel, 2, 1, 0), (taking_pairs_kernel, 2, 1, 0), (waiting_kernel, 3, 2, 1)
    ):  # fmt: skip
        for name, dtype in DTYPES.items():
            if kernel is taking_pairs_kernel and dtype.itemsize > 2:
                continue
            found[f"{kernel.__name__} {name}"] = _launches(heap, kernel, dtype, slots, programs, left)
    return {**found, "missing": missing(heap)}


def _launches(heap: Any, kernel: Any, dtype: torch.dtype, slots: int, programs: int, left: int) -> dict[str, Any]:
    bits, rank = BITS[dtype.itemsize], heap.rank
    inbox, status = heap.allocate((slots, WORDS), bits).zero_(), new_status(heap)
    heap.barrier()
    right = 0
    for epoch in range(LAUNCHES):
        if heap.device.type == "cpu" and epoch % 2 == rank:
            time.sleep(0.02)
        mine, out = _drawn(dtype, rank, epoch).to(heap.device), torch.zeros((programs, WORDS), dtype=bits)
        out = out.to(heap.device)
        kernel[(programs,)](mine.view(bits), inbox, out, epoch, rank, heap.bases, status, 1 << 20, WORDS, num_warps=4)
        expected = _drawn(dtype, 1 - rank, epoch)
        for row in out.cpu():
            right += same(row.view(dtype)[:-1], expected[:-1])
    heap.barrier()
    full = [bool((slot != 0).any()) for slot in inbox[:, : WORDS - 1].cpu()]
    return {"right": right, "all": LAUNCHES * programs, "full": sum(full), "left": left, "late": status[0].item()}


def _drawn(dtype: torch.dtype, rank: int, epoch: int) -> torch.Tensor:
    bits = torch.tensor(VALUES).roll(rank * 3 + epoch).repeat(WORDS // len(VALUES))
    return bits.to(BITS[dtype.itemsize]).view(dtype)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    bits = BITS[found.dtype.itemsize]
    return bool(((found.view(bits) == expected.view(bits)) | (found.isnan() & expected.isnan())).all())


def missing(heap: Any) -> int:
    """Counts the waits that time out on rank 0, whose peer sends nothing, or only one of every two words."""
    late = 0
    for kernel, there in ((taking_kernel, (False, False)), *((taking_pairs_kernel, each) for each in HALVES)):
        inbox, status = heap.allocate((2, WORDS), torch.int16).zero_(), new_status(heap)
        heap.barrier()
        if heap.rank == 0:
            inbox[0] = torch.tensor(there, device=heap.device).repeat(WORDS // 2)
            mine, out = (torch.zeros(WORDS, dtype=torch.int16, device=heap.device) for _ in range(2))
            kernel[(1,)](mine, inbox, out, 0, 0, heap.bases, status, 300, WORDS, num_warps=4)
        heap.barrier()
        late += int(status[0].item())
    return late
