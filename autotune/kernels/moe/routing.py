"""Routing in torch: draws of it, and the plan that follows from it, as the kernels' reference and as the library's way.

A routing is ids [..., K] int32, -1 for none, and gates of the same shape, fp32: the weights of the chosen experts.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

import torch

from autotune.kernels.moe.histogram import shares_of
from autotune.kernels.moe.problem import NEVER, ExpertsProblem

Kind = Literal["plain", "one expert", "holes"]

POPULAR = 20261122
"""Seed of the order in which experts are popular: the same experts are hot in every call, as in a trained model."""

DRAWS, TYPICAL_OF = 48, 21
"""Routings at most of which one is timed, and those of which the middle one is typical."""

ALIKE = 16
"""Part of the rows by which the load of a routing that is timed may differ, where as many experts have some."""

FEW_ROWS = 16
"""Rows of an expert, on average, from which on all experts have some in nearly every draw."""


@dataclass(frozen=True)
class Routing:
    """The routing of all ranks' tokens, [world_size, tokens, top_k]."""

    ids: torch.Tensor
    """int32; an expert that a token names twice has two rows of it."""
    gates: torch.Tensor
    """fp32: the weight of each chosen expert."""


def drawn_routing(problem: ExpertsProblem, device: torch.device, seed: int, kind: Kind = "plain") -> Routing:
    """A routing by the problem's distribution, the same on every rank for the same seed.

    ``one expert``: every token chooses expert ``seed`` % experts first, and the others follow the distribution.
    ``holes``: rank ``seed`` % world_size has no tokens, the others only their first three quarters, and of the ids that
    are left one in eight is -1. A few gates are zero, of either sign.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (problem.world_size, problem.tokens)

    def uniform(*sizes: int) -> torch.Tensor:
        return torch.rand(sizes, generator=generator, device=device).clamp_(1e-7, 1 - 1e-7)

    # The K largest of log popularity + Gumbel noise are K draws without replacement.
    scores = log_popularity(problem).to(device) - torch.log(-torch.log(uniform(*shape, problem.experts)))
    if kind == "one expert":
        scores[..., seed % problem.experts] = math.inf
    ids = scores.topk(problem.top_k, dim=-1).indices.to(torch.int32)
    if kind == "holes":
        ids[seed % problem.world_size] = -1
        ids[:, 1 + problem.tokens * 3 // 4 :] = -1
        ids[uniform(*ids.shape) < 1 / 8] = -1
    gates = uniform(*ids.shape)
    gates /= gates.sum(-1, keepdim=True)
    gates.flatten(1)[:, 5::16], gates.flatten(1)[:, 13::16] = 0.0, -0.0
    return Routing(ids, gates)


def typical_routing(problem: ExpertsProblem, device: torch.device, seed: int) -> Routing:
    """A plain routing to time configs with: of several draws the one whose busiest rank is most like the typical one,
    by its experts that have tokens, then by its rows.

    Each trial has a seed of its own. With a token a rank and 8 of 64 experts the busier of two ranks reads from 6 to 11
    experts' B, by the draw: the same config took 156 µs in a search and 215 in the finals (2 H100, 2026-11-24).
    """
    if problem.all_pairs >= FEW_ROWS * problem.experts:
        return drawn_routing(problem, device, seed)
    experts, rows = _typical_load(problem)

    def unlike(routing: Routing) -> tuple[int, int]:
        found = _busiest(problem, routing)
        return abs(found[0] - experts), abs(found[1] - rows)

    cpu = torch.device("cpu")  # where the load of few tokens is counted soonest
    chosen = drawn_routing(problem, cpu, seed * DRAWS)
    for number in range(1, DRAWS):
        if unlike(chosen) <= (0, rows // ALIKE):
            break
        chosen = min(chosen, drawn_routing(problem, cpu, seed * DRAWS + number), key=unlike)
    return Routing(chosen.ids.to(device), chosen.gates.to(device))


@functools.lru_cache(maxsize=16)
def _typical_load(problem: ExpertsProblem) -> tuple[int, int]:
    """Experts with tokens and rows of the busiest rank, the median over seeded draws."""
    cpu = torch.device("cpu")
    return sorted(_busiest(problem, drawn_routing(problem, cpu, seed)) for seed in range(TYPICAL_OF))[TYPICAL_OF // 2]


def _busiest(problem: ExpertsProblem, routing: Routing) -> tuple[int, int]:
    """The most experts with tokens, and the most rows, that a rank has."""
    rows = torch.bincount(routing.ids.flatten(), minlength=problem.experts).view(problem.world_size, -1)
    return int((rows > 0).sum(1).max()), int(rows.sum(1).max())


def log_popularity(problem: ExpertsProblem) -> torch.Tensor:
    """The logarithm of each expert's weight, fp32 [experts] on the CPU. An expert that a recording lacks has nearly
    none: it is chosen where top_k leaves no other.
    """
    if problem.histogram:
        return torch.tensor(shares_of(problem.histogram), dtype=torch.float32).clamp_(min=NEVER).log_()
    order = torch.randperm(problem.experts, generator=torch.Generator().manual_seed(POPULAR))
    return -problem.exponent * torch.log(1.0 + order)


@dataclass(frozen=True)
class Plan:
    """One rank's rows: pairs of a token and one of this rank's experts, by expert, then by source rank and token.

    Rows from ``offsets[L]`` on do not exist: whatever is there means nothing.
    """

    offsets: torch.Tensor
    """int32 [L + 1]: the rows of local expert e are those from offsets[e] to offsets[e + 1] - 1."""
    pairs: torch.Tensor
    """int32 [capacity]: (source rank * tokens + token) * top_k + place among the token's ids, for each row."""
    gates: torch.Tensor
    """fp32 [capacity]: the gate of each row."""
    lost: torch.Tensor | None = None
    """bool []: whether rows were too many; None where they cannot be."""


def planned(problem: ExpertsProblem, routing: Routing, rank: int, out: Plan | None = None) -> Plan:
    """The plan of a rank, by fixed shapes: it waits for no number on the host, and can be captured. Written to ``out``
    where there is one.

    Where rows are too many, a token has one for each of its experts here, which there is always room for, and all gates
    are NaN: whoever combines, each token that came here is NaN.
    """
    local, capacity = problem.local_experts, problem.capacity
    if out is None:
        ids, gates = routing.ids, routing.gates
        out = Plan(ids.new_empty(local + 1), ids.new_empty(capacity), gates.new_empty(capacity))
    # Local experts from 0 on, everything else ``local``: in three kernels, where comparisons take five.
    expert = torch.nn.functional.threshold(routing.ids - rank * local, -1, local).clamp_(max=local)
    lost = None
    if problem.top_k > local:  # only then may rows be too many
        lost = (expert < local).sum() > capacity
        expert = torch.where(lost & repeats(expert), local, expert)
    expert, pairs = torch.sort(expert.flatten(), stable=True)
    bounds = torch.arange(local + 1, dtype=expert.dtype, device=expert.device)
    torch.searchsorted(expert, bounds, out_int32=True, out=out.offsets)
    out.pairs.copy_(pairs[:capacity])
    torch.index_select(routing.gates.flatten(), 0, pairs[:capacity], out=out.gates)
    if lost is not None:
        out.gates.masked_fill_(lost, torch.nan)
    return replace(out, lost=lost)


def repeats(ids: torch.Tensor) -> torch.Tensor:
    """The places of ids [..., top_k] whose number is at an earlier place, too: bool, of the same shape."""
    return (ids[..., :, None] == ids[..., None, :]).tril(-1).any(-1)


def reached_ranks(problem: ExpertsProblem, ids: torch.Tensor) -> torch.Tensor:
    """The ranks that a token with ids [..., top_k] goes to: bool [..., world_size]."""
    owner = torch.where(ids >= 0, ids // problem.local_experts, problem.world_size)
    ranks = torch.arange(problem.world_size, device=ids.device)
    return (owner[..., None] == ranks).any(-2)
