"""Mixtures of experts in plain torch's two ways, and by our operators.

Gathered: all tokens go to all ranks, padded so that the host reads no count; what is done beside the grouped GEMM and
the collective counts eagerly and, on GPUs, compiled: the faster. Counted: each token goes once to each rank that has
experts of it, by an all-to-all whose sizes the host reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from outside_cases import Case, Collectives, Operands, Tensor, Way, swiglu

import autotune


@dataclass(frozen=True)
class Plan:
    """This rank's rows, by expert, source rank and token: ``offsets`` of experts, ``pairs`` and gates of rows."""

    offsets: Tensor
    pairs: Tensor
    gates: Tensor

    @classmethod
    def of(cls, problem: Any, ids: Tensor, gates: Tensor, rank: int) -> Plan:
        """From all ranks' ids and gates [world_size, tokens, top_k], by shapes that are always the same."""
        offsets, pairs = by_expert(problem, ids, rank)
        pairs = pairs[: problem.world_size * problem.tokens * min(problem.top_k, problem.experts // problem.world_size)]
        return cls(offsets, pairs.int(), gates.flatten()[pairs])


def by_expert(problem: Any, ids: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Offsets of the rank's experts, and pairs of a token and an expert ordered by expert, then token; those of other
    ranks' experts last.
    """
    local = problem.experts // problem.world_size
    expert = ids.flatten() - rank * local
    expert = torch.where((expert >= 0) & (expert < local), expert, local)
    expert, pairs = torch.sort(expert, stable=True)
    bounds = torch.arange(local + 1, dtype=expert.dtype, device=expert.device)
    return torch.searchsorted(expert, bounds, out_int32=True), pairs


class Routed:
    """One routing of all ranks' tokens, and what every way needs of it. The last tokens of a rank that has fewer than
    the most have no experts. The first of the popular experts is on the first rank, the second on the next, and so on.
    """

    def __init__(self, problem: Any, device: torch.device, tokens: Sequence[int] | None) -> None:
        generator = torch.Generator(device).manual_seed(7)  # on every rank the same
        shape = (problem.world_size, problem.tokens, problem.experts)
        drawn = torch.rand(shape, generator=generator, device=device).clamp_(1e-7, 1 - 1e-7)
        place = torch.arange(problem.experts, device=device).view(problem.world_size, -1).t().flatten().argsort()
        scores = -problem.exponent * torch.log(1.0 + place) - torch.log(-torch.log(drawn))
        self.every_ids = scores.topk(problem.top_k).indices.int()
        weights = torch.rand(self.every_ids.shape, generator=generator, device=device)
        self.every_gates = weights / weights.sum(-1, keepdim=True)
        for rank, count in enumerate(tokens or ()):
            self.every_ids[rank, count:] = -1
        self.rank = dist.get_rank()
        self.most = None if tokens is None else problem.tokens
        self.own = problem.tokens if tokens is None else tokens[self.rank]
        self.ids = self.every_ids[self.rank, : self.own].clone()
        self.gates = self.every_gates[self.rank, : self.own].clone()
        self.plan = Plan.of(problem, self.every_ids, self.every_gates, self.rank)
        self.rows = int(self.plan.offsets[-1])


@dataclass(frozen=True)
class Counted:
    """The tokens that this rank and the others exchange, counted by the host."""

    sent: Tensor
    """Own tokens by the rank that has experts of them; a token once for each."""
    sent_rows: list[int]
    got_rows: list[int]

    @classmethod
    def of(cls, problem: Any, ids: Tensor, collectives: Collectives) -> Counted:
        """From this rank's ids [tokens, top_k]."""
        ranks = torch.arange(problem.world_size, device=ids.device)
        owner = ids // (problem.experts // problem.world_size)
        wanted = (owner == ranks[:, None, None]).any(-1)
        counts = wanted.sum(1)
        got = torch.empty_like(counts)
        collectives.all_to_all(got, counts, [1] * problem.world_size, [1] * problem.world_size)
        return cls(wanted.nonzero()[:, 1], counts.tolist(), got.tolist())

    def there(self, given: Tensor, collectives: Collectives) -> Tensor:
        """Rows of own tokens, at the ranks of their experts."""
        got = given.new_empty(sum(self.got_rows), *given.shape[1:])
        collectives.all_to_all(got, given[self.sent], self.got_rows, self.sent_rows)
        return got

    def back(self, sums: Tensor, tokens: int, collectives: Collectives) -> Tensor:
        """The totals of own tokens, from the sums of each rank."""
        got = sums.new_empty(len(self.sent), *sums.shape[1:])
        collectives.all_to_all(got, sums, self.sent_rows, self.got_rows)
        return sums.new_zeros(tokens, *sums.shape[1:]).index_add_(0, self.sent, got)


def grouped(rows: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """Each row times its expert's B: by torch's own product where it has one; a toy's so that a graph can hold it."""
    if rows.is_cuda and rows.dtype is torch.bfloat16 and len(rows):
        product: Tensor = torch.nn.functional.grouped_mm(rows, b, offs=offsets[1:])
        return product
    number = torch.arange(len(rows), device=rows.device)[:, None]
    product = rows.new_zeros((rows.shape[0], b.shape[2]))
    for expert, matrix in enumerate(b):
        its = (number >= offsets[expert]) & (number < offsets[expert + 1])
        product = torch.where(its, rows @ matrix, product)
    return product


def make(
    problem: Any, context: autotune.Context, collectives: Collectives, tokens: Sequence[int] | None = None
) -> Case:  # fmt: skip
    """The case of a problem, its operands drawn; ``tokens`` of the ranks, where not all have the most."""
    kinds = {"moe_dispatch_gemm": dispatch_gemm, "moe_gemm_combine": gemm_combine}
    operands = Operands(problem, context.heap.device, 1000 + dist.get_rank())
    routed = Routed(problem, context.heap.device, tokens)
    return kinds[problem.workload](problem, context, collectives, operands, routed)


def dispatch_gemm(
    problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands, routed: Routed
) -> Case:  # fmt: skip
    """Tokens to their experts and the grouped GEMM with SwiGLU; of C the rows that exist, as many in every call."""
    world, device = problem.world_size, operands.device
    local, hidden, top_k = problem.experts // world, problem.hidden, problem.top_k
    count = operands.sets(local * hidden * 2 * problem.width)
    drawn = [
        (operands.normal(problem.tokens, hidden),
         operands.normal(local, 2 * problem.width, hidden, scale=hidden**-0.5).transpose(1, 2))
        for _ in range(count)
    ]  # fmt: skip
    every = torch.empty(world * problem.tokens, hidden, dtype=operands.dtype, device=device)
    routing = torch.empty(world, 2, problem.tokens, top_k, dtype=torch.int32, device=device)

    def plain(number: int, activate: Callable[[Tensor], Tensor] = swiglu) -> Tensor:
        x, b = drawn[number % count]
        own = torch.stack([routed.every_ids[routed.rank], routed.every_gates[routed.rank].view(torch.int32)])
        collectives.all_gather(routing.view(world * 2, problem.tokens, top_k), own)
        collectives.all_gather(every, x)
        ids, gates = routing[:, 0], routing[:, 1].view(torch.float32)
        plan = Plan.of(problem, ids, gates, routed.rank)
        return activate(grouped(every[plan.pairs // top_k], b, plan.offsets))[: routed.rows]

    def counted(number: int) -> Tensor:
        x, b = drawn[number % count]
        exchanged = Counted.of(problem, routed.ids, collectives)
        tokens = exchanged.there(x, collectives)
        chosen = exchanged.there(torch.stack([routed.ids, routed.gates.view(torch.int32)], dim=1), collectives)
        offsets, pairs = by_expert(problem, chosen[:, 0], routed.rank)
        return swiglu(grouped(tokens[pairs[: routed.rows] // top_k], b, offsets))

    def ours(number: int) -> Tensor:
        x, b = drawn[number % count]
        found = autotune.moe_dispatch_gemm(
            context, x[: routed.own], routed.ids, routed.gates, b, experts=problem.experts, tokens=routed.most,
            routing=problem.routing, exponent=problem.exponent,
        )  # fmt: skip
        return found.rows[: routed.rows]

    compiled = torch.compile(swiglu) if device.type == "cuda" else swiglu
    gathered = {"plain": plain, "compiled": lambda number: plain(number, compiled)}
    return Case(problem, count, gathered, ours, counted={"counted": counted})


def added(product: Tensor, plan: Plan, tokens: int, top_k: int) -> Tensor:
    """The sum of each token's rows times their gates [tokens, hidden]: every row is added to its token's."""
    exists = torch.arange(len(product), device=product.device) < plan.offsets[-1]
    token = torch.where(exists, plan.pairs // top_k, tokens)
    weighted = product * plan.gates[:, None].to(product.dtype)
    return product.new_zeros(tokens + 1, product.shape[1]).index_add_(0, token, weighted)[:tokens]


def gathered(product: Tensor, plan: Plan, tokens: int, top_k: int) -> Tensor:
    """``added``, but every token reads its rows. Unrolled, so that a compiler makes one kernel of the sums."""
    row = torch.arange(len(product), device=product.device)
    pair = torch.where(row < plan.offsets[-1], plan.pairs, tokens * top_k).long()
    rows = row.new_zeros(tokens * top_k + 1).scatter_(0, pair, row)[:-1].view(tokens, top_k)
    gates = plan.gates.new_zeros(tokens * top_k + 1).scatter_(0, pair, plan.gates)[:-1].view(tokens, top_k)
    total = product[rows[:, 0]].float() * gates[:, :1]
    for number in range(1, top_k):
        total = total + product[rows[:, number]].float() * gates[:, number : number + 1]
    return total.to(product.dtype)


def gemm_combine(
    problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands, routed: Routed
) -> Case:  # fmt: skip
    """The grouped GEMM, the sum of each token's rows times their gates, and the sum of these over the ranks."""
    world, device = problem.world_size, operands.device
    local, width, tokens = problem.experts // world, problem.width, world * problem.tokens
    plan = routed.plan
    count = operands.sets(local * width * problem.hidden)
    drawn = [
        (operands.normal(len(plan.pairs), width),
         operands.normal(local, problem.hidden, width, scale=width**-0.5).transpose(1, 2))
        for _ in range(count)
    ]  # fmt: skip
    mine = torch.empty(problem.tokens, problem.hidden, dtype=operands.dtype, device=device)

    def by(sums: Callable[[Tensor, Plan, int, int], Tensor]) -> Way:
        def way(number: int) -> Tensor:
            a, b = drawn[number % count]
            summed = sums(grouped(a, b, plan.offsets), plan, tokens, problem.top_k)
            collectives.reduce_scatter(mine, summed)
            return mine[: routed.own].clone()

        return way

    def counted(number: int) -> Tensor:
        a, b = drawn[number % count]
        exchanged = Counted.of(problem, routed.ids, collectives)
        summed = added(grouped(a, b, plan.offsets), plan, tokens, problem.top_k)
        here = (plan.pairs[: routed.rows] // problem.top_k).long().unique()  # by source rank and token
        return exchanged.back(summed[here], routed.own, collectives)

    def ours(number: int) -> Tensor:
        a, b = drawn[number % count]
        return autotune.moe_gemm_combine(
            context, a, b, plan.offsets, plan.pairs, plan.gates, routed.ids, tokens=routed.most,
            routing=problem.routing, exponent=problem.exponent,
        )  # fmt: skip

    compiled = torch.compile(gathered) if device.type == "cuda" else gathered
    return Case(problem, count, {"plain": by(added), "compiled": by(compiled)}, ours, counted={"counted": counted})
