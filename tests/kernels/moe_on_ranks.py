"""Functions for ranks in the tests of mixtures of experts: they launch the plan directly."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autotune.heap import open_heap
from autotune.heap.status import new_status
from autotune.kernels.launching.plan import Launch
from autotune.kernels.moe.plan import plan_kernel
from autotune.kernels.moe.problem import SLOTS, ExpertsProblem
from autotune.kernels.moe.routing import Routing, drawn_routing, planned

SPIN_LIMIT = 1 << (26 if torch.cuda.is_available() else 14)
"""Polls. On GPUs a rank compiles for seconds while the other one waits for its routing."""


def plans(cases: list[dict[str, Any]]) -> list[bool]:
    """For each case whether the plans of several launches in a row, each with other routing, are all as in torch."""
    heap = open_heap(16 << 20, dist.new_group(backend="gloo"))
    found = []
    for case in cases:
        mark = heap.mark()
        problem = ExpertsProblem(hidden=8, world_size=heap.world_size, **case["problem"])
        found.append(_right(heap, problem, case["seed"], **case["launch"]))
        heap.barrier()
        heap.release(mark)
    return found


def _right(heap: Any, problem: ExpertsProblem, seed: int, *, parts: int, ll: bool, step: int) -> bool:
    world, pairs, device = problem.world_size, problem.tokens * problem.top_k, heap.device
    inbox = heap.allocate((SLOTS, world, 2, pairs), torch.int64 if ll else torch.int32).zero_()
    arrivals = heap.allocate((SLOTS, world), torch.int32).zero_()
    epoch, status = heap.allocate((1,), torch.int64).zero_(), new_status(heap)
    ids = torch.empty(problem.tokens, problem.top_k, dtype=torch.int32, device=device)
    gates = torch.empty(problem.tokens, problem.top_k, device=device)
    offsets = torch.empty(problem.local_experts + 1, dtype=torch.int32, device=device)
    listed = torch.empty(problem.capacity, dtype=torch.int32, device=device)
    listed_gates = torch.empty(problem.capacity, device=device)
    own_rows = torch.empty(problem.local_experts, 2, dtype=torch.int32, device=device)
    heap.barrier()
    launch = Launch(
        plan_kernel, parts + problem.local_experts,
        {"ids": ids, "gates": gates, "offsets": offsets, "listed": listed, "listed_gates": listed_gates,
         "own_rows": own_rows, "inbox": inbox, "arrivals": arrivals, "pairs": pairs, "local": problem.local_experts,
         "capacity": problem.capacity, "parts": parts, "rank": heap.rank, "heap_bases": heap.bases,
         "epoch_counter": epoch, "status": status, "spin_limit": SPIN_LIMIT, "WORLD": world, "LL": ll, "STEP": step},
        {"num_warps": 4},
    )  # fmt: skip
    right = []
    for number, kind in enumerate(("plain", "holes", "one expert", "plain")):
        routing = drawn_routing(problem, device, seed + number, kind)
        ids.copy_(routing.ids[heap.rank])
        gates.copy_(routing.gates[heap.rank])
        for each in (offsets, listed, listed_gates, own_rows):
            each.fill_(-1)
        launch.run()
        right.append(_agrees(problem, routing, heap.rank, offsets, listed, listed_gates, own_rows))
    return all(right) and not status[0].item()


def _agrees(problem: ExpertsProblem, routing: Routing, rank: int, *found: torch.Tensor) -> bool:
    """True if offsets, pairs and gates of rows that exist are the reference's, and no others were written; and own rows
    are those of tokens of this rank.
    """
    expected = planned(problem, routing, rank)
    rows = int(expected.offsets[-1])
    offsets, pairs, gates, own_rows = found
    begin, end = own_rows.long().unbind(1)
    row = torch.arange(len(pairs), device=pairs.device)
    listed_as_own = ((row >= begin[:, None]) & (row < end[:, None])).any(0)
    own = (row < rows) & (expected.pairs // (problem.tokens * problem.top_k) == rank)
    return (
        torch.equal(offsets, expected.offsets)
        and torch.equal(listed_as_own, own)
        and torch.equal(pairs[:rows], expected.pairs[:rows])
        and torch.equal(gates[:rows], expected.gates[:rows])
        and bool((pairs[rows:] == -1).all())
    )
