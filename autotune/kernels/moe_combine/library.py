"""The library's ways to combine: rows are summed by token where they are, and a collective does the rest."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from autotune.kernels.launching.collectives import reduce_scatter_single
from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import Plan, reached_ranks
from autotune.kernels.moe_combine.problem import CombinedProblem


def combine(
    problem: CombinedProblem, rows: torch.Tensor, plan: Plan, ids: torch.Tensor, out: torch.Tensor, exchange: str,
    rank: int, group: Any,
) -> None:  # fmt: skip
    """Out [tokens, hidden] = the sums of all ranks' rows by token. ``exchange``: a collective of fixed shapes, or an
    ``all_to_all`` for which the host reads counts. Where the problem demands determinism, parts are exchanged, and
    added in the order of ranks.
    """
    if exchange == "all_to_all":
        _counted(problem, rows, plan, ids, out, rank, group)
        return
    summed = _by_token(problem, rows, plan)
    if problem.deterministic:
        parts = torch.empty_like(summed)
        dist.all_to_all_single(parts, summed, group=group)
        torch.sum(parts.view(problem.world_size, *out.shape), dim=0, out=out)
    else:
        reduce_scatter_single(out, summed, group=group)


def _by_token(problem: ExpertsProblem, rows: torch.Tensor, plan: Plan) -> torch.Tensor:
    """[world_size * tokens, hidden]: the sum of each token's rows times their gates, in the order of its ids.

    The host reads nothing: rows are bags of the library's ``embedding_bag``, which reads each once, sums in fp32 and
    writes each token once. ``index_add_`` adds every row in memory: with it the whole way took 6.5 ms, of which GEMM
    and collective are 1.5 (4096 tokens a rank of 7168, top-8, two H200).
    """
    row = torch.arange(rows.shape[0], device=rows.device)
    pairs = torch.where(row < plan.offsets[-1], plan.pairs.long(), problem.all_pairs)
    places = torch.full((problem.all_pairs + 1,), -1, dtype=torch.int64, device=rows.device)
    places[pairs] = torch.where(pairs < problem.all_pairs, row, -1)
    places = places[:-1].view(-1, problem.top_k)
    exists = places >= 0
    # Bags are of equal size: what is missing is another of the token's rows, times zero; the last bag of bags by bounds
    # goes on to the end of all indices on GPUs.
    bags = torch.where(exists, places, places.amax(1, keepdim=True).clamp_(min=0))
    gates = torch.where(exists, plan.gates[bags], 0.0).to(rows.dtype)
    summed = F.embedding_bag(bags, rows, mode="sum", per_sample_weights=gates)
    return summed.masked_fill_(~exists.any(1, keepdim=True), 0.0)  # of a token without rows: a row that may be none


def _counted(
    problem: CombinedProblem, rows: torch.Tensor, plan: Plan, ids: torch.Tensor, out: torch.Tensor, rank: int,
    group: Any,
) -> None:  # fmt: skip
    """The host waits for counts, and each token's sum travels where there is one."""
    world, tokens = problem.world_size, problem.tokens
    count = int(plan.offsets[-1])
    summed = _by_token(problem, rows, plan)
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
