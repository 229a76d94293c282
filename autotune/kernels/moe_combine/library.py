"""The library's ways to combine: rows are summed by token where they are, and a collective does the rest."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import Plan, reached_ranks
from autotune.kernels.moe_combine.problem import CombinedProblem


def combine(
    problem: CombinedProblem, rows: torch.Tensor, plan: Plan, ids: torch.Tensor, out: torch.Tensor, exchange: str,
    rank: int, group: Any,
) -> None:  # fmt: skip
    """Out [tokens, hidden] = the sums of all ranks' rows by token. ``exchange``: a collective of fixed shapes, or an
    ``all_to_all`` for which the host reads counts. Where the problem demands determinism, rows are gathered in the
    order of a token's ids, as adding them where they go depends on who comes first; then sums in the order of ranks.
    """
    if exchange == "all_to_all":
        _counted(problem, rows, plan, ids, out, rank, group)
        return
    summed = _by_choice(problem, rows, plan) if problem.deterministic else _added(problem, rows, plan)
    if problem.deterministic:
        parts = torch.empty_like(summed)
        dist.all_to_all_single(parts, summed, group=group)
        torch.sum(parts.view(problem.world_size, *out.shape), dim=0, out=out)
    else:
        dist.reduce_scatter_tensor(out, summed, group=group)


def _added(problem: ExpertsProblem, rows: torch.Tensor, plan: Plan, count: int | None = None) -> torch.Tensor:
    """[world_size * tokens, hidden]: each row times its gate, added where its token is; rows that do not exist go to
    one more token. ``count`` says how many exist, where the host knows.
    """
    tokens = problem.world_size * problem.tokens
    token = _pairs(problem, plan)[:count] // problem.top_k
    summed = rows.new_zeros((tokens + 1, problem.hidden))
    summed.index_add_(0, token, rows[:count] * plan.gates[:count, None].to(rows.dtype))
    return summed[:tokens]


def _by_choice(problem: ExpertsProblem, rows: torch.Tensor, plan: Plan) -> torch.Tensor:
    """The same, summed in fp32 in the order of each token's ids."""
    pairs, row = _pairs(problem, plan), torch.arange(rows.shape[0], device=rows.device)
    places = torch.full((problem.all_pairs + 1,), -1, dtype=torch.int64, device=rows.device)
    places[pairs] = torch.where(pairs < problem.all_pairs, row, -1)
    of_token = places[:-1].view(-1, problem.top_k)
    summed = torch.zeros((of_token.shape[0], problem.hidden), dtype=torch.float32, device=rows.device)
    for place in of_token.unbind(1):
        here = (place >= 0)[:, None]
        there = place.clamp(min=0)
        summed += torch.where(here, rows[there].float() * plan.gates[there, None], 0.0)
    return summed.to(rows.dtype)


def _pairs(problem: ExpertsProblem, plan: Plan) -> torch.Tensor:
    """The pair of each row, int64; ``all_pairs`` for rows that do not exist."""
    pairs = plan.pairs.long()
    exists = torch.arange(pairs.shape[0], device=pairs.device) < plan.offsets[-1]
    return torch.where(exists, pairs, problem.all_pairs)


def _counted(
    problem: CombinedProblem, rows: torch.Tensor, plan: Plan, ids: torch.Tensor, out: torch.Tensor, rank: int,
    group: Any,
) -> None:  # fmt: skip
    """The host waits for counts, and each token's sum travels where there is one."""
    world, tokens = problem.world_size, problem.tokens
    count = int(plan.offsets[-1])
    summed = _by_choice(problem, rows, plan) if problem.deterministic else _added(problem, rows, plan, count)
    leaving = torch.zeros(world * tokens, dtype=torch.bool, device=rows.device)
    leaving[plan.pairs[:count].long() // problem.top_k] = True
    reached = reached_ranks(problem, ids)
    sent, received = leaving.view(world, tokens).sum(1).tolist(), reached.sum(0).tolist()
    arrived = rows.new_empty((sum(received), problem.hidden))
    dist.all_to_all_single(arrived, summed[leaving], received, sent, group)
    total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    for source, part in enumerate(arrived.split(received)):
        total[reached[:, source]] += part
    out.copy_(total)
