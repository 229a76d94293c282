"""Sentinel words arrive whatever is in them, launch after launch, whether one program reads them or several."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from ranks_of_functions import run_ranks
from two_ranks import EVERYWHERE

from autotune.heap import device, open_heap
from autotune.heap.status import new_status
from autotune.kernels.primitives.sentinel import sentinel_bits, sentinel_empty, sentinel_take, sentinel_wait


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
    """How many waits time out of a rank whose peer sends nothing, or of every two words one."""
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
