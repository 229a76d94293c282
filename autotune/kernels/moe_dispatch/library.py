"""The library's ways to dispatch: an all-gather of everything, or an all-to-all whose counts the host reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import settle_key
from autotune.kernels.launching.tensors import Run
from autotune.kernels.launching.way import LibraryWay
from autotune.kernels.moe.plan import ROWS_LOST
from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import Plan, Routing, planned, reached_ranks
from autotune.kernels.moe_dispatch.device import select_rows_kernel
from autotune.kernels.moe_dispatch.modes import Library
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.kernels.moe_dispatch.tensors import ScaledTensors, Tensors

SELECTED = 8192
"""Columns that a program copies at once."""
SELECTING = 2048
"""Programs that copy rows: several for each compute unit of any GPU."""


class BulkSynchronous(LibraryWay[MoeDispatch, Library[MoeDispatch], Tensors]):
    def eager(self, call: Call[MoeDispatch, Library[MoeDispatch], Tensors, None]) -> Run:
        """The host reads the counts of an all-to-all; an all-gather needs none."""
        tensors = call.tensors
        scales = scale_rows = None
        if isinstance(tensors, ScaledTensors):
            scales, scale_rows = tensors.scale_x, tensors.scale_rows

        def run() -> None:
            dispatched(call, scales, tensors.rows, scale_rows)

        return run

    def roundings(self, problem: MoeDispatch) -> float:
        return 0.0


def dispatched(
    call: Call[Any, Any, Any, Any], scales: torch.Tensor | None, rows: torch.Tensor | None = None,
    scale_rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The rows of a call's tokens here, and their scales where tokens have ``scales``, written to ``rows`` and
    ``scale_rows`` where given. Their plan goes into the call's results. By an all-to-all there are as many rows as
    exist; otherwise those that do not exist are undefined.
    """
    problem, tensors = call.problem, call.tensors
    routing = gathered_routing(problem, tensors.ids, tensors.gates, call.group)
    plan = planned(problem, routing, call.rank, Plan(tensors.offsets, tensors.pairs, tensors.row_gates))
    if plan.lost is not None:
        call.status[1].bitwise_or_(plan.lost * ROWS_LOST.value)
    x = tensors.x
    sent = x if scales is None else with_scales(x, scales)
    if call.knobs.exchange == "all_to_all":
        arrived = by_all_to_all(problem, sent, routing.ids, plan, call.rank, call.group)
    else:
        arrived = by_all_gather(problem, sent, plan, call.group)
    if scales is None:
        return arrived.rows(0, rows, x), None
    return arrived.rows(0, rows, x), arrived.rows(problem.hidden, scale_rows, scales)


def gathered_routing(problem: ExpertsProblem, ids: torch.Tensor, gates: torch.Tensor, group: Any) -> Routing:
    """Every rank's routing, by one all-gather of ids and gates together."""
    own = torch.stack([ids, gates.view(torch.int32)])
    flat = own.new_empty((problem.world_size * 2, *ids.shape))
    all_gather_single(flat, own, group)
    every = flat.view(problem.world_size, *own.shape)
    return Routing(every[:, 0], every[:, 1].view(torch.float32))


@dataclass(frozen=True)
class Arrived:
    """Tokens that have arrived, and which of them each row is."""

    tokens: torch.Tensor
    """[.., columns of what was sent]."""
    place: torch.Tensor
    """int [rows]: divided by ``choices`` the row's token among those."""
    choices: int
    end: torch.Tensor
    """int32 [1]: the number of rows that exist."""

    def rows(self, first: int, out: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """[rows, columns of ``like``], of its type: what rows' tokens have from column ``first`` on, in ``out`` where
        given.

        No call of torch copies the rows that exist alone, whose number the device knows: of 8192 tokens a rank with 8
        rows each of 7168 columns, on two ranks, these take 458 µs, and all that there might be 961 (H200, 2026-11-29).
        """
        if out is None:
            out = like.new_empty((len(self.place), like.shape[1]))
        target, source = out.view(self.tokens.dtype), self.tokens[:, first:]
        columns = target.shape[1]
        settle_key(select_rows_kernel)
        if len(self.place):
            select_rows_kernel[(min(len(self.place), SELECTING),)](
                source, self.place, self.end, target, columns, source.stride(0), self.choices,
                min(SELECTED, 1 << (columns - 1).bit_length()), num_warps=8,
            )  # fmt: skip
        return out


def with_scales(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Fp8 tokens and their scales behind them, as bytes: they travel together. A row is whole vectors of 16 bytes, so
    that torch can select it as such: 65536 rows of 7172 bytes take 1.87 ms, of 7184 bytes 0.22 (H200, 2026-11-24).
    """
    row = [x.view(torch.uint8), scales.view(torch.uint8)]
    rest = -sum(each.shape[1] for each in row) % 16
    return torch.cat([*row, row[0].new_zeros((x.shape[0], rest))], dim=1)


def by_all_gather(problem: ExpertsProblem, x: torch.Tensor, plan: Plan, group: Any) -> Arrived:
    """Tokens x [tokens, ..] without a word to the host, at the price of every token to every rank. There are
    ``capacity`` rows, not all of which exist.
    """
    every = x.new_empty((problem.world_size * problem.tokens, x.shape[1]))
    all_gather_single(every.view(torch.uint8), x.view(torch.uint8), group)
    return Arrived(every, plan.pairs, problem.top_k, plan.offsets[-1:])


def by_all_to_all(
    problem: ExpertsProblem, x: torch.Tensor, ids: torch.Tensor, plan: Plan, rank: int, group: Any
) -> Arrived:  # fmt: skip
    """Send each token once to each rank that it reaches, which gets as many rows as exist. The host waits for the
    counts.
    """
    reached = reached_ranks(problem, ids)  # [source, token, rank]
    counts = reached.sum(1).tolist()
    leaving = torch.cat([x[reached[rank, :, peer]] for peer in range(problem.world_size)])
    received = [counts[source][rank] for source in range(problem.world_size)]
    arrived = x.new_empty((sum(received), x.shape[1]))
    dist.all_to_all_single(arrived.view(torch.uint8), leaving.view(torch.uint8), received, counts[rank], group)
    place = reached[:, :, rank].flatten().cumsum(0) - 1
    place = place[plan.pairs[: int(plan.offsets[-1])] // problem.top_k]
    return Arrived(arrived, place, 1, plan.offsets[-1:])
