"""Under the interpreter a wait in a kernel ends once a peer's process has, whatever its limit of polls."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from ranks_of_functions import run_ranks

import autotune
from autotune.errors import GangError
from autotune.heap import device, open_heap
from autotune.heap.status import new_status
from autotune.kernels.primitives.ll import ll_wait


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
