"""The library's ways to dispatch: an all-gather of everything, or an all-to-all whose counts the host reads."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import Plan, Routing, planned, reached_ranks


def gathered_routing(problem: ExpertsProblem, ids: torch.Tensor, gates: torch.Tensor, group: Any) -> Routing:
    """Every rank's routing, by one all-gather of ids and gates together."""
    own = torch.stack([ids, gates.view(torch.int32)])
    flat = own.new_empty((problem.world_size * 2, *ids.shape))
    dist.all_gather_into_tensor(flat, own, group)
    every = flat.view(problem.world_size, *own.shape)
    return Routing(every[:, 0], every[:, 1].view(torch.float32))


def by_all_gather(problem: ExpertsProblem, x: torch.Tensor, routing: Routing, rank: int, group: Any) -> tuple[
    torch.Tensor, Plan
]:  # fmt: skip
    """Rows [capacity, hidden] and their plan without a word to the host, at the price of every token to every rank.

    Rows that do not exist are copies of others.
    """
    every = x.new_empty((problem.world_size * problem.tokens, problem.hidden))
    dist.all_gather_into_tensor(every.view(torch.uint8), x.view(torch.uint8), group)
    plan = planned(problem, routing, rank)
    return every[plan.pairs // problem.top_k], plan


def by_all_to_all(problem: ExpertsProblem, x: torch.Tensor, routing: Routing, rank: int, group: Any) -> tuple[
    torch.Tensor, Plan
]:  # fmt: skip
    """As many rows as there are, and their plan: each token once to each rank that it reaches. The host waits for the
    counts.
    """
    reached = reached_ranks(problem, routing.ids)  # [source, token, rank]
    counts = reached.sum(1).tolist()
    leaving = torch.cat([x[reached[rank, :, peer]] for peer in range(problem.world_size)])
    received = [counts[source][rank] for source in range(problem.world_size)]
    arrived = x.new_empty((sum(received), problem.hidden))
    dist.all_to_all_single(arrived.view(torch.uint8), leaving.view(torch.uint8), received, counts[rank], group)
    plan = planned(problem, routing, rank)
    place = reached[:, :, rank].flatten().cumsum(0) - 1
    pairs = plan.pairs[: int(plan.offsets[-1])]
    return arrived[place[pairs // problem.top_k]], plan
