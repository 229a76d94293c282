"""The common part of workloads that combine experts' rows: drawn rows, the error of a result, a caller's plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch

from autotune.errors import InvalidProblem
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.contract import S, T
from autotune.kernels.moe.routing import planned
from autotune.kernels.moe_combine.problem import CombinedProblem
from autotune.task import Task
from autotune.workloads.comparison import SPREAD, distance, rounded
from autotune.workloads.experts import (
    FACTORS,
    SCALE_FACTORS,
    Draw,
    DrawnVectors,
    ExpertsOperation,
    ExpertsWorkload,
    chosen_rows,
)
from autotune.workloads.interface import Run
from autotune.workloads.launched import Operands, with_rows
from autotune.workloads.tolerance import RIGHT, WRONG, Error, Tolerance

C = TypeVar("C", bound=CombinedProblem)

NOT_A_PAIR = torch.iinfo(torch.int32).min


class DrawnRows(DrawnVectors):
    """Rows by expert: a token's vector times a factor of the place among its ids, so that rows of a token differ. What
    lies behind the last row is poison.
    """

    def __init__(self, problem: CombinedProblem, heap: SymmetricHeap, seed: int, width: int, draw: Draw) -> None:
        super().__init__(problem, heap, seed, width, draw)
        if self._scales is not None:
            # Times a factor of its set and one of its place they stay numbers of fp8.
            dtype = self._every.dtype
            most = torch.finfo(dtype).max / 4
            self._every = self._every.to(torch.float16).clamp_(-most, most).to(dtype)

    def put(self, number: int, rows: torch.Tensor, tensors: Any) -> None:
        plan = planned(self._problem, self.routings[number], self._rank)
        exists = torch.arange(self._problem.capacity, device=rows.device) < plan.offsets[-1]
        token, place = plan.pairs // self._problem.top_k, plan.pairs % self._problem.top_k
        wide = torch.float16 if rows.element_size() == 1 else rows.dtype
        values = chosen_rows(self._every, token).to(wide) * (FACTORS[number] * factor_of(place))[:, None].to(wide)
        rows.copy_(torch.where(exists[:, None], values, torch.nan))
        if self._scales is not None:
            tensors.scale_a.copy_(torch.where(exists[:, None], self._scales[token] * SCALE_FACTORS[number], torch.nan))
        tensors.offsets.copy_(plan.offsets)
        tensors.pairs.copy_(torch.where(exists, plan.pairs, NOT_A_PAIR))
        tensors.row_gates.copy_(torch.where(exists, plan.gates, torch.nan))
        tensors.ids.copy_(self.ids(number))

    def ids(self, number: int) -> torch.Tensor:
        """int32 [tokens, top_k]: those of this rank's tokens."""
        return self.routings[number].ids[self._rank]

    def own(self, number: int) -> torch.Tensor:
        """[tokens, width]: the vectors of this rank's tokens, as numbers."""
        return self.numbers(number, self._mine)

    def weights(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """fp32 [tokens, top_k]: by what a token's rows make up its result: gate and factor, 0 without expert; and the
        tokens that have experts, bool [tokens].
        """
        ids, gates = self.ids(number), self.routings[number].gates[self._rank]
        place = torch.arange(self._problem.top_k, device=ids.device)
        return torch.where(ids >= 0, gates * factor_of(place), 0.0), (ids >= 0).any(1)


def factor_of(place: torch.Tensor) -> torch.Tensor:
    """Factor of a row by its place among a token's ids: exact in every element type."""
    return 1.0 + place % 2


class CombinedOperation(ExpertsOperation[C, T, S], Generic[C, T, S]):
    """An operation whose first operand has rows by expert, and whose result has a row for each token of this rank."""

    drawn: DrawnRows

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The distance from the sums by token of the tokens that have experts; infinite where another one's result is
        not zero.
        """
        (out,), (weights, exists) = outputs, self.drawn.weights(number)
        if not bool((out[~exists] == 0).all()):
            return WRONG
        if not bool(exists.any()):
            return RIGHT
        return distance(out[exists], self.sums(number, weights.to(self.wide))[exists])

    @abstractmethod
    def sums(self, number: int, weights: torch.Tensor) -> torch.Tensor:
        """The reference [tokens, hidden] for a set, by the ``weights`` of a token's rows, in type ``wide``."""

    def parts(self) -> dict[str, Run]:
        """An even all-to-all of as many sums as go to a rank on average, and sums of as many rows."""
        (out,), problem = self.outputs(), self._problem
        taken, total = out.new_zeros((problem.tokens, problem.top_k, problem.hidden)), torch.zeros_like(out)

        def sums() -> None:
            torch.sum(taken, 1, out=total)

        return {"all_to_all": self.exchange(), "sums": sums}


class CombinedWorkload(ExpertsWorkload):
    """A workload whose result has a row for each token of this rank."""

    exchange = "reduce_scatter"

    def filled(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Operands | None:
        """One token for each rank, and the rows of its plan."""
        named = dict(zip(self.kernels.operands, operands, strict=True))
        rows, ids, offsets = operands[0], named["ids"], named["offsets"]
        if rows.shape[:1] != (0,) or ids.shape[:1] != (0,) or (ids.dim(), offsets.dim()) != (2, 1):
            return None
        named["ids"] = with_rows(ids, 1)
        return [with_rows(each, world_size * min(ids.shape[1], offsets.shape[0] - 1)) for each in named.values()]


def combined_tolerance(task: Task[CombinedProblem], roundings: float, depth: int) -> Tolerance:
    problem = task.problem
    found = rounded(problem.result_dtype, roundings, depth, problem.tokens * problem.hidden, task.machine)
    return Tolerance(found.overall, SPREAD * found.element)


def plan_of_a_call(
    world_size: int, rows: torch.Tensor, plan: Sequence[torch.Tensor], ids: torch.Tensor
) -> dict[str, int]:
    """The sizes in a caller's operands. Raises InvalidProblem unless offsets, pairs and gates fit rows and ids."""
    offsets, pairs, gates = plan
    local = offsets.shape[0] - 1 if offsets.dim() == 1 else 0
    fits = ids.dim() == 2 and local > 0
    capacity = world_size * ids.shape[0] * min(ids.shape[1], local) if fits else 0
    fits = fits and rows.shape[0] == capacity and pairs.shape == gates.shape == (capacity,)
    types = {each.dtype for each in (offsets, pairs, ids)} == {torch.int32} and gates.dtype is torch.float32
    if not (fits and types and all(each.is_contiguous() for each in (*plan, ids))):
        raise InvalidProblem(
            f"rows {list(rows.shape)}, offsets {list(offsets.shape)} {offsets.dtype}, pairs {list(pairs.shape)} "
            f"{pairs.dtype}, gates {list(gates.shape)} {gates.dtype}, ids {list(ids.shape)} {ids.dtype}: expected "
            "int32 offsets [local experts + 1], pairs [capacity] and ids [tokens, top_k] and float32 gates [capacity], "
            f"contiguous, as a dispatch gives them: capacity is ranks * tokens * min(top_k, local experts), {capacity}"
        )
    return {"tokens": ids.shape[0], "top_k": ids.shape[1], "experts": local * world_size}
