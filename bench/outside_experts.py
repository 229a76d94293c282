"""Mixtures of experts twice: in plain torch, padded so that the host reads no count, and by our operators.

What plain torch does beside the grouped GEMM and the collective counts eagerly and, on GPUs, compiled: the faster.
"""

from __future__ import annotations

from collections.abc import Callable
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
        local = problem.experts // problem.world_size
        expert = ids.flatten() - rank * local
        expert = torch.where((expert >= 0) & (expert < local), expert, local)
        expert, pairs = torch.sort(expert, stable=True)
        bounds = torch.arange(local + 1, dtype=expert.dtype, device=expert.device)
        offsets = torch.searchsorted(expert, bounds, out_int32=True)
        pairs = pairs[: problem.world_size * problem.tokens * min(problem.top_k, local)]
        return cls(offsets, pairs.int(), gates.flatten()[pairs])


class Routed:
    """One routing of all ranks' tokens, experts equally popular, and what every way needs of it."""

    def __init__(self, problem: Any, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(7)  # on every rank the same
        shape = (problem.world_size, problem.tokens, problem.experts)
        scores = torch.rand(shape, generator=generator, device=device)
        self.every_ids = scores.topk(problem.top_k).indices.int()
        drawn = torch.rand(self.every_ids.shape, generator=generator, device=device)
        self.every_gates = drawn / drawn.sum(-1, keepdim=True)
        self.rank = dist.get_rank()
        self.ids, self.gates = self.every_ids[self.rank].clone(), self.every_gates[self.rank].clone()
        self.plan = Plan.of(problem, self.every_ids, self.every_gates, self.rank)
        self.rows = int(self.plan.offsets[-1])


def grouped(rows: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """Each row times its expert's B; torch's own where it has one."""
    if rows.is_cuda and rows.dtype is torch.bfloat16:
        product: Tensor = torch.nn.functional.grouped_mm(rows, b, offs=offsets[1:])
        return product
    bounds = offsets.tolist()
    product = rows.new_zeros((rows.shape[0], b.shape[2]))
    for expert, matrix in enumerate(b):
        product[bounds[expert] : bounds[expert + 1]] = rows[bounds[expert] : bounds[expert + 1]] @ matrix
    return product


def make(problem: Any, context: autotune.Context, collectives: Collectives) -> Case:
    """The case of a problem, its operands drawn."""
    kinds = {"moe_dispatch_gemm": dispatch_gemm, "moe_gemm_combine": gemm_combine}
    operands = Operands(problem, context.heap.device, 1000 + dist.get_rank())
    return kinds[problem.workload](problem, context, collectives, operands)


def dispatch_gemm(problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands) -> Case:
    """Tokens to all ranks and the grouped GEMM with SwiGLU; of C the rows that exist, as many in every call."""
    world, device, routed = problem.world_size, operands.device, Routed(problem, operands.device)
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
        own = torch.stack([routed.ids, routed.gates.view(torch.int32)])
        collectives.all_gather(routing.view(world * 2, problem.tokens, top_k), own)
        collectives.all_gather(every, x)
        ids, gates = routing[:, 0], routing[:, 1].view(torch.float32)
        plan = Plan.of(problem, ids, gates, routed.rank)
        return activate(grouped(every[plan.pairs // top_k], b, plan.offsets))[: routed.rows]

    def ours(number: int) -> Tensor:
        x, b = drawn[number % count]
        found = autotune.moe_dispatch_gemm(context, x, routed.ids, routed.gates, b, experts=problem.experts)
        return found.rows[: routed.rows]

    compiled = torch.compile(swiglu) if device.type == "cuda" else swiglu
    return Case(problem, count, {"plain": plain, "compiled": lambda number: plain(number, compiled)}, ours)


def added(product: Tensor, plan: Plan, tokens: int, top_k: int) -> Tensor:
    """The sum of each token's rows times their gates [tokens, hidden]: every row is added to its token's."""
    exists = torch.arange(len(product), device=product.device) < plan.offsets[-1]
    token = torch.where(exists, plan.pairs // top_k, tokens)
    weighted = product * plan.gates[:, None].to(product.dtype)
    return product.new_zeros(tokens + 1, product.shape[1]).index_add_(0, token, weighted)[:tokens]


def gathered(product: Tensor, plan: Plan, tokens: int, top_k: int) -> Tensor:
    """The same: every token reads its rows. Unrolled, so that a compiler makes one kernel of the sums."""
    row = torch.arange(len(product), device=product.device)
    pair = torch.where(row < plan.offsets[-1], plan.pairs, tokens * top_k).long()
    rows = row.new_zeros(tokens * top_k + 1).scatter_(0, pair, row)[:-1].view(tokens, top_k)
    gates = plan.gates.new_zeros(tokens * top_k + 1).scatter_(0, pair, plan.gates)[:-1].view(tokens, top_k)
    total = product[rows[:, 0]].float() * gates[:, :1]
    for number in range(1, top_k):
        total = total + product[rows[:, number]].float() * gates[:, number : number + 1]
    return total.to(product.dtype)


def gemm_combine(problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands) -> Case:
    """The grouped GEMM, the sum of each token's rows times their gates, and a reduce-scatter of all tokens' sums."""
    world, device, routed = problem.world_size, operands.device, Routed(problem, operands.device)
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
            return mine.clone()

        return way

    def ours(number: int) -> Tensor:
        a, b = drawn[number % count]
        return autotune.moe_gemm_combine(context, a, b, plan.offsets, plan.pairs, plan.gates, routed.ids)

    compiled = torch.compile(gathered) if device.type == "cuda" else gathered
    return Case(problem, count, {"plain": by(added), "compiled": by(compiled)}, ours)
