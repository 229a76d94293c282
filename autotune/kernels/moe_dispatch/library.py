"""The library's ways to dispatch: an all-gather of everything, or an all-to-all whose counts the host reads."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.tensors import Run
from autotune.kernels.launching.way import LibraryWay
from autotune.kernels.moe.plan import ROWS_LOST
from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import Plan, Routing, planned, reached_ranks
from autotune.kernels.moe_dispatch.modes import Library
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.kernels.moe_dispatch.tensors import ScaledTensors, Tensors


class BulkSynchronous(LibraryWay[MoeDispatch, Library[MoeDispatch], Tensors]):
    def eager(self, call: Call[MoeDispatch, Library[MoeDispatch], Tensors, None]) -> Run:
        """The host reads the counts of an all-to-all; an all-gather needs none."""
        tensors = call.tensors
        scaled = tensors if isinstance(tensors, ScaledTensors) else None

        def run() -> None:
            rows, of_rows = dispatched(call, None if scaled is None else scaled.scale_x)
            tensors.rows[: rows.shape[0]].copy_(rows)
            if scaled is not None and of_rows is not None:
                scaled.scale_rows[: rows.shape[0]].copy_(of_rows)

        return run

    def roundings(self, problem: MoeDispatch) -> float:
        return 0.0


def dispatched(
    call: Call[Any, Any, Any, Any], scales: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The rows of a call's tokens here, and their scales where tokens have ``scales``. Their plan goes into the call's
    results. By an all-to-all there are as many rows as exist.
    """
    problem, tensors = call.problem, call.tensors
    routing = gathered_routing(problem, tensors.ids, tensors.gates, call.group)
    x, dispatch = tensors.x, by_all_to_all if call.knobs.exchange == "all_to_all" else by_all_gather
    sent = x if scales is None else with_scales(x, scales)
    arrived, place, plan = dispatch(problem, sent, routing, call.rank, call.group)
    tensors.offsets.copy_(plan.offsets)
    tensors.pairs.copy_(plan.pairs)
    tensors.row_gates.copy_(plan.gates)
    if plan.lost is not None:
        call.status[1].bitwise_or_(plan.lost * ROWS_LOST.value)
    if scales is None:
        return arrived[place], None
    behind = problem.hidden + problem.row_scales * torch.float32.itemsize
    rows, of_rows = arrived[:, : problem.hidden][place], arrived[:, problem.hidden : behind][place]
    return rows.view(x.dtype), of_rows.view(torch.float32)


def gathered_routing(problem: ExpertsProblem, ids: torch.Tensor, gates: torch.Tensor, group: Any) -> Routing:
    """Every rank's routing, by one all-gather of ids and gates together."""
    own = torch.stack([ids, gates.view(torch.int32)])
    flat = own.new_empty((problem.world_size * 2, *ids.shape))
    all_gather_single(flat, own, group)
    every = flat.view(problem.world_size, *own.shape)
    return Routing(every[:, 0], every[:, 1].view(torch.float32))


Arrived = tuple[torch.Tensor, torch.Tensor, Plan]
"""Tokens that have arrived [.., columns of what was sent]; of each row its token among those, int [rows]; the plan."""


def with_scales(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Fp8 tokens and their scales behind them, as bytes: they travel together. A row is whole vectors of 16 bytes, so
    that torch can select it as such: 65536 rows of 7172 bytes take 1.87 ms, of 7184 bytes 0.22 (H200, 2026-11-24).
    """
    row = [x.view(torch.uint8), scales.view(torch.uint8)]
    rest = -sum(each.shape[1] for each in row) % 16
    return torch.cat([*row, row[0].new_zeros((x.shape[0], rest))], dim=1)


def by_all_gather(problem: ExpertsProblem, x: torch.Tensor, routing: Routing, rank: int, group: Any) -> Arrived:
    """Tokens x [tokens, ..] without a word to the host, at the price of every token to every rank. There are
    ``capacity`` rows: those that do not exist are copies of others.
    """
    every = x.new_empty((problem.world_size * problem.tokens, x.shape[1]))
    all_gather_single(every.view(torch.uint8), x.view(torch.uint8), group)
    plan = planned(problem, routing, rank)
    return every, plan.pairs // problem.top_k, plan


def by_all_to_all(problem: ExpertsProblem, x: torch.Tensor, routing: Routing, rank: int, group: Any) -> Arrived:
    """Send each token once to each rank that it reaches, which gets as many rows as exist. The host waits for the
    counts.
    """
    reached = reached_ranks(problem, routing.ids)  # [source, token, rank]
    counts = reached.sum(1).tolist()
    leaving = torch.cat([x[reached[rank, :, peer]] for peer in range(problem.world_size)])
    received = [counts[source][rank] for source in range(problem.world_size)]
    arrived = x.new_empty((sum(received), x.shape[1]))
    dist.all_to_all_single(arrived.view(torch.uint8), leaving.view(torch.uint8), received, counts[rank], group)
    plan = planned(problem, routing, rank)
    place = reached[:, :, rank].flatten().cumsum(0) - 1
    pairs = plan.pairs[: int(plan.offsets[-1])]
    return arrived, place[pairs // problem.top_k], plan
