"""Corners of the heap's contract: counters that wrap around, waits that end, memory to the last byte."""

from __future__ import annotations

import errno
import json
import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from process_ends import left_in_shared_memory, shared_memory
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS

import autotune
from autotune.errors import GangError, HeapError, HeapExhausted
from autotune.heap import device, open_heap, status
from autotune.heap.alarm import Alarm
from autotune.heap.arena import ALIGNMENT, SymmetricHeap
from autotune.heap.status import new_status
from autotune.kernels.primitives.ll import ll_wait


@pytest.mark.parametrize("gpu", TWO_GPUS)
def test_signals_hand_over_data_and_waits_end(gpu: str, tmp_path: Path) -> None:
    ranks: list[dict[str, Any]] = run_ranks(__file__, "synchronisation", 2, tmp_path, gpu=gpu)
    for rank, found in enumerate(ranks):
        assert found["ring"] == [[1000 * (1 - rank) + turn] for turn in range(TURNS)]
        assert found["ring status"] == 0
        assert found["ring counter"] == -(1 << 31) + TURNS // 2, "the counter has wrapped around"
        assert found["no wait"] == [[0, 0], 0], "what is there already is not waited for"
        assert found["timed out"] == [[1, 1], 1]
        assert found["hopeless"] == [1, 1]
        assert found["hopeless seconds"] < 300, "once one wait has timed out, the others do not spin to their limit"
    assert ranks[0]["counted"] == ranks[1]["counted"] == 2 * TICKETS
    taken = [ticket for found in ranks for ticket in found["tickets"]]
    assert sorted(taken) == list(range(2 * TICKETS)), "atomic between the processes: every number once"


def test_memory_is_handed_out_to_the_last_byte_and_peers_see_it(tmp_path: Path) -> None:
    before = shared_memory()
    for found in run_ranks(__file__, "bookkeeping", 2, tmp_path):
        too_large, full = found["refused"]
        assert f"{1 << 50} bytes" in too_large and "rank 1" in full
        size = found["size"]
        assert found["left at first"] == size == (64 << 10) + 24, "the end of the heap is no multiple of the alignment"
        assert found["aligned"] and found["distinct"] and found["empty is free"]
        assert found["all of it"] == [size, 0]
        assert "AUTOTUNE_HEAP_BYTES" in found["one byte more"]
        assert found["after release"] == size
        assert all(found["bad marks"])
        assert found["view"] == [[4, 6], "torch.bfloat16", True]
        assert found["part of a view"] and found["own"]
        assert found["owns"] == [True, True, False, False]
        assert all("contiguous" in message for message in found["not contiguous"]), found["not contiguous"]
        assert "heap.allocate" in found["not on the heap"]
    assert not left_in_shared_memory(before)


def test_more_ranks_than_a_time_out_can_be_told_to_are_refused() -> None:
    assert device.MOST_TOLD.value == status.MOST_RANKS
    agreement: Any = SimpleNamespace(rank=0, world_size=status.MOST_RANKS + 1)
    with pytest.raises(HeapError, match=str(status.MOST_RANKS)):
        Alarm(agreement, agreement)


TURNS = 12
ALMOST_FULL = (1 << 31) - TURNS // 2
"""Start of the counters, from which they wrap around halfway."""

TICKETS, WAITS = 32, 2

PATIENCE = 1 << 26
"""Reads of a counter before a wait times out: enough for another rank to compile meanwhile, on a busy host too."""


@triton.jit
def ring_kernel(boxes, flag, out, status, turn, target, rank, heap_bases, spin_limit, WORLD: tl.constexpr):
    peers = device.Peers(rank, heap_bases, status, spin_limit)
    offsets = turn * 64 + tl.arange(0, 64)
    after = (rank + 1) % WORLD
    device.store(boxes + offsets, tl.zeros((64,), tl.int32) + 1000 * rank + turn, rank, after, heap_bases)
    device.signal(flag, after, peers)
    late = device.wait(flag, target, peers)
    tl.store(out + offsets, tl.load(boxes + offsets + late * 0))


@triton.jit
def waits_kernel(flag, results, status, target, spin_limit, WAITS: tl.constexpr):
    peers = device.Peers(None, None, status, spin_limit)
    for i in range(WAITS):
        tl.store(results + i, device.wait(flag, target, peers))


@triton.jit
def tickets_kernel(counter, tickets, rank, heap_bases):
    ticket = device.atomic_add(counter, 1, rank, 0, heap_bases, sem="acq_rel", scope="sys")
    tl.store(tickets + tl.program_id(0), ticket)


def _zeros(heap: SymmetricHeap, *shape: int) -> torch.Tensor:
    return heap.allocate(shape, torch.int32).zero_()


def synchronisation(argument: Any) -> dict[str, Any]:
    """Signals over many launches without a host barrier between them, waits that time out, contended atomics."""
    heap = open_heap(1 << 20, dist.new_group(backend="gloo"))
    found: dict[str, Any] = {}

    boxes, out, flag, status = _zeros(heap, TURNS, 64), _zeros(heap, TURNS, 64), _zeros(heap, 1), new_status(heap)
    flag.fill_(ALMOST_FULL)
    heap.barrier()
    for turn in range(TURNS):
        target = (ALMOST_FULL + turn + 1 + (1 << 31)) % (1 << 32) - (1 << 31)
        where = (heap.rank, heap.bases)
        ring_kernel[(1,)](boxes, flag, out, status, turn, target, *where, PATIENCE, WORLD=heap.world_size)
    heap.barrier()
    found["ring"] = [sorted(set(row)) for row in out.tolist()]
    found["ring status"], found["ring counter"] = int(status[0].item()), int(flag.item())

    flag, status, results = _zeros(heap, 1), new_status(heap), _zeros(heap, WAITS)
    flag.fill_(5)
    results.fill_(-1)
    waits_kernel[(1,)](flag, results, status, 5, 0, WAITS=WAITS)
    heap.barrier()
    found["no wait"] = [results.tolist(), int(status[0].item())]
    waits_kernel[(1,)](flag, results, status, 6, 300, WAITS=WAITS)
    heap.barrier()
    found["timed out"] = [results.tolist(), int(status[0].item())]
    begin = time.monotonic()
    waits_kernel[(1,)](flag, results, status, 6, 1 << 30, WAITS=WAITS)
    heap.barrier()
    found["hopeless"], found["hopeless seconds"] = results.tolist(), time.monotonic() - begin

    counter, tickets = _zeros(heap, 1), _zeros(heap, TICKETS)
    heap.barrier()
    tickets_kernel[(TICKETS,)](counter, tickets, heap.rank, heap.bases)
    heap.barrier()
    found["tickets"], found["counted"] = tickets.tolist(), int(heap.peer(counter, 0).item())
    heap.barrier()
    heap.close()
    return found


def bookkeeping(argument: Any) -> dict[str, Any]:
    heap = open_heap((64 << 10) + 24, dist.new_group(backend="gloo"))
    rank, found = heap.rank, {"refused": too_large()}
    found["size"], found["left at first"] = heap.size, heap.left

    start = heap.mark()
    offsets = [heap.offset(heap.allocate(shape, torch.bfloat16)) for shape in [(3,), (7, 5), (), (1,)]]
    found["aligned"] = all((offset - offsets[0]) % ALIGNMENT == 0 for offset in offsets)
    found["distinct"] = len(set(offsets)) == len(offsets)
    left = heap.left
    found["empty is free"] = heap.allocate((0, 4), torch.bfloat16).numel() == 0 and heap.left == left
    heap.release(start)
    whole = heap.allocate((heap.left,), torch.uint8)
    found["all of it"] = [whole.numel(), heap.left]
    found["one byte more"] = _message(lambda: heap.allocate((1,), torch.uint8), HeapExhausted)
    heap.release(start)
    found["after release"] = heap.left
    found["bad marks"] = [_message(partial(heap.release, mark), HeapError) for mark in (-1, start + 1)]

    heap.allocate((5,), torch.int8)
    matrix = heap.allocate((4, 6), torch.bfloat16)
    matrix.copy_(torch.arange(24).view(4, 6) + 32 * rank)
    heap.barrier()
    other = (rank + 1) % heap.world_size
    view = heap.peer(matrix, other)
    found["view"] = [list(view.shape), str(view.dtype), view.float().tolist() == _expected(other)]
    found["part of a view"] = heap.peer(matrix[2:], other).float().tolist() == _expected(other)[2:]
    found["own"] = heap.peer(matrix, rank).data_ptr() == matrix.data_ptr()
    found["owns"] = [heap.owns(each) for each in (matrix, matrix[3], view, torch.zeros(1, device=heap.device))]
    found["not contiguous"] = [
        _message(partial(heap.peer, each, other), HeapError) for each in (matrix.t(), matrix[:, 1:3])
    ]
    found["not on the heap"] = _message(lambda: heap.peer(view.clone(), other), HeapError)
    heap.barrier()
    heap.close()
    return found


def too_large() -> list[str]:
    """The errors of a heap too large for any host, and where the memory of rank 1 is full."""
    group = dist.new_group(backend="gloo")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if dist.get_rank() == 1 else None
    told = _message(lambda: open_heap(1 << 50, group), HeapError)
    with mock.patch("os.posix_fallocate", side_effect=full):
        return [told, _message(lambda: open_heap(1 << 20, group), HeapError)]


def _expected(rank: int) -> list[list[float]]:
    rows: list[list[float]] = (torch.arange(24).view(4, 6) + 32 * rank).float().tolist()
    return rows


def _message(call: Any, kind: type[Exception]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("of_word", "ranks"), [(False, 2), (False, 3), (True, 2)])
def test_a_wait_for_a_process_that_has_ended_ends(of_word: bool, ranks: int, tmp_path: Path) -> None:
    *others, _ = run_ranks(__file__, "wait_alone", ranks, tmp_path, argument=(str(tmp_path), of_word))
    assert others == [3] * (ranks - 1), "each left its mark, beside the one that was there"


def test_a_call_that_a_dead_peer_misses_raises(tmp_path: Path) -> None:
    told, _ = run_ranks(__file__, "in_an_operator", 2, tmp_path, argument=str(tmp_path))
    assert "timed out" in told


def test_watching_peers_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    for opened, closed, again, after in run_ranks(__file__, "descriptors", 2, tmp_path, argument=str(tmp_path)):
        assert opened == again > closed == after


NEVER = 1 << 30
"""Polls, of which the interpreter makes a thousand a second at most."""
OTHER = 2


@triton.jit
def forlorn_kernel(flag, status, spin_limit):
    peers = device.Peers(None, None, status, spin_limit)
    device.wait(flag, 1, peers)


@triton.jit
def forlorn_ll_kernel(word, status, spin_limit):
    peers = device.Peers(None, None, status, spin_limit)
    place = word + tl.arange(0, 1)
    ll_wait(place, tl.full((), 1, tl.int32), tl.full((1,), 1, tl.int1), peers)


def last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def leave(folder: str, answer: object) -> None:
    Path(folder, f"answer{dist.get_rank()}").write_text(json.dumps(answer))
    os._exit(0)


def wait_alone(argument: tuple[str, bool]) -> None:
    """The mark that a wait for a counter, or for an LL word, has left behind."""
    folder, of_word = argument
    heap = open_heap(1 << 20, dist.new_group(backend="gloo"))
    place = heap.allocate((1,), torch.int64 if of_word else torch.int32).zero_()
    status = new_status(heap)
    status[0] = OTHER
    heap.barrier()
    if last():
        leave(folder, None)
    (forlorn_ll_kernel if of_word else forlorn_kernel)[(1,)](place, status, NEVER)
    leave(folder, status[0].item())


def in_an_operator(folder: str) -> None:
    problem = autotune.GemmAllReduce(m=16, n=32, k=64, world_size=dist.get_world_size(), dtype="fp32")
    context = autotune.Context(1 << 22, url=f"{folder}/none.db")
    context.spin_limit = NEVER
    a, b = torch.ones(problem.m, problem.k_local), torch.ones(problem.k_local, problem.n)
    autotune.gemm_all_reduce(context, a, b)
    if last():
        leave(folder, None)
    try:
        autotune.gemm_all_reduce(context, a, b)
    except GangError as error:
        leave(folder, str(error))
    leave(folder, "no error")


def descriptors(folder: str) -> list[int]:
    """Descriptors of this process before, with and after a heap."""
    group = dist.new_group(backend="gloo")
    found = []
    for _ in range(2):
        heap = open_heap(1 << 20, group)
        found.append(len(os.listdir("/proc/self/fd")))
        heap.close()
        found.append(len(os.listdir("/proc/self/fd")))
    return found
