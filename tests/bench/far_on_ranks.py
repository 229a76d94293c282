"""Launches of the two-level kernels on a heap across hosts, for the ranks of tests."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from far.heap import FarHeap, _open

from autotune.heap.status import new_status

HOSTS, LOCAL = 2, 2
WORLD = HOSTS * LOCAL
LAUNCHES = 4
PATIENCE = 4000
"""Polls of a millisecond."""


def loaded(file: str) -> Any:
    """The kernel of a module of the bench, or of a copy with edits."""
    spec = importlib.util.spec_from_file_location(f"tested_{Path(file).stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"{Path(file).stem}_kernel")


def drawn(shape: tuple[int, ...], seed: int, low: int = -4, high: int = 4) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def all_gather_gemm(argument: dict[str, Any]) -> dict[str, Any]:
    """The launches that are wrong on this rank, and the bytes put in each."""
    kernel = loaded(argument["file"])
    m, n, k, chunk, block = 32, 32, 32, 16, 16
    heap = FarHeap(1 << 20, LOCAL, argument["seed"])
    a, b = heap.allocate((m, k), torch.float32), drawn((k, n), 1).float()
    inbox = heap.allocate((2, WORLD, m, k), torch.float32).fill_(float("nan"))
    net = heap.allocate((2, HOSTS, m // chunk), torch.int64).zero_()
    near = heap.allocate((2, WORLD, m // chunk), torch.int32).zero_()
    epoch, status = heap.allocate((1,), torch.int64).zero_(), new_status(heap)
    heap.barrier()
    wrong = []
    for launch in range(LAUNCHES):
        shards = [drawn((m, k), 100 * launch + rank).float() for rank in range(WORLD)]
        a.copy_(shards[heap.rank])
        c = torch.full((WORLD * m, n), float("nan"))
        time.sleep(0.02 * ((heap.rank + launch + argument["seed"]) % 3))
        programs = 2 * HOSTS - 1 + WORLD * (m // block) * (n // block)
        kernel[(programs,)](
            a, b, c, inbox, net, near, epoch, heap.rank, heap.bases, status, PATIENCE, HOSTS=HOSTS, LOCAL=LOCAL,
            M=m, N=n, K=k, CHUNK=chunk, BLOCK_M=block, BLOCK_N=block, BLOCK_K=block, BLOCK=256,
        )  # fmt: skip
        a.fill_(float("nan"))
        if not (heap.is_quiet and torch.equal(c, torch.cat(shards) @ b)):
            wrong.append(launch)
    heap.barrier()
    heap.close()
    return {"wrong": wrong, "sent": heap.sent / LAUNCHES, "once": (HOSTS - 1) * m * k * 4}


def dispatch(argument: dict[str, Any]) -> dict[str, Any]:
    """The same; the bytes are ids, and one row at least for each chunk, and else each token once for a far host."""
    kernel = loaded(argument["file"])
    t, h, top, experts, chunk = 16, 32, 2, 2, 4
    heap = FarHeap(1 << 20, LOCAL, argument["seed"])
    x, ids = heap.allocate((t, h), torch.float32), heap.allocate((t, top), torch.int32)
    packed = heap.allocate((HOSTS, t, h), torch.float32)
    landed, inbox = (heap.allocate((2, ranks, t, h), torch.float32).fill_(float("nan")) for ranks in (HOSTS, WORLD))
    inbox_ids = heap.allocate((2, WORLD, t, top), torch.int32).fill_(-1)
    net = heap.allocate((2, HOSTS, 1 + t // chunk), torch.int64).zero_()
    near = heap.allocate((2, WORLD), torch.int32).zero_()
    epoch, status = heap.allocate((1,), torch.int64).zero_(), new_status(heap)
    heap.barrier()
    wrong, once = [], 0
    for launch in range(LAUNCHES):
        tokens = [drawn((t, h), 100 * launch + rank).float() for rank in range(WORLD)]
        routing = torch.stack([drawn((t, top), 7 + 100 * launch + rank, -2, WORLD * experts) for rank in range(WORLD)])
        x.copy_(tokens[heap.rank])
        ids.copy_(routing[heap.rank])
        rows, all_ids = torch.full((WORLD, t, h), -99.0), torch.full((WORLD, t, top), -99, dtype=torch.int32)
        time.sleep(0.02 * ((heap.rank + launch + argument["seed"]) % 3))
        kernel[(2 * HOSTS - 1 + WORLD,)](
            x, ids, rows, all_ids, packed, landed, inbox, inbox_ids, net, near, epoch, heap.rank, heap.bases, status,
            PATIENCE, HOSTS=HOSTS, LOCAL=LOCAL, T=t, H=h, TOP=top, EXPERTS=experts, CHUNK=chunk,
        )  # fmt: skip
        ids.fill_(-1)
        packed.fill_(float("nan"))
        owner = torch.where(routing >= 0, routing // experts, -1)
        ours = (owner == heap.rank).any(-1, keepdim=True)
        expected = torch.where(ours, torch.stack(tokens), -99.0)
        if not (heap.is_quiet and torch.equal(rows, expected) and torch.equal(all_ids, routing)):
            wrong.append(launch)
        for far in {0, 1} - {heap.rank // LOCAL}:
            wanted = int((owner[heap.rank] // LOCAL == far).logical_and(owner[heap.rank] >= 0).any(-1).sum())
            once += t * top * 4 + sum(min(max(wanted - begin, 1), chunk) for begin in range(0, t, chunk)) * h * 4
    heap.barrier()
    heap.close()
    return {"wrong": wrong, "sent": heap.sent / LAUNCHES, "once": once / LAUNCHES}


def all_of(cases: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The answers of the functions above, or their errors, by the names of the cases."""
    answers = {}
    for name, (function, argument) in cases.items():
        try:
            answers[name] = globals()[function](argument)
        except Exception as error:  # noqa: BLE001  told
            answers[name] = {"error": f"{error} {error.__cause__}"}
            _open[-1].close()
    return answers
