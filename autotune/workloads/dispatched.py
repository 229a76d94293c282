"""The common part of workloads that begin with a dispatch: the check of its plan, its baselines, a caller's routing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch

from autotune.errors import InvalidProblem
from autotune.kernels.launching.contract import T
from autotune.kernels.moe.routing import Plan, planned
from autotune.kernels.moe_dispatch.exchange import Scratch
from autotune.kernels.moe_dispatch.problem import DispatchedProblem
from autotune.workloads.comparison import drawn_deep
from autotune.workloads.experts import (
    FACTORS,
    SCALE_FACTORS,
    DrawnVectors,
    ExpertsOperation,
    ExpertsWorkload,
    chosen_rows,
    times,
)
from autotune.workloads.launched import Operands, OutForm
from autotune.workloads.rows import Batch, unlike
from autotune.workloads.tolerance import RIGHT, WRONG, Error

D = TypeVar("D", bound=DispatchedProblem)
S = TypeVar("S", bound=Scratch)


class DrawnTokens(DrawnVectors):
    def put(self, number: int, rows: torch.Tensor, tensors: Any) -> None:
        rows.copy_(times(self._every[self._mine], FACTORS[number]))
        if self._scales is not None:
            torch.mul(self._scales[self._mine], SCALE_FACTORS[number], out=tensors.scale_x)
        tensors.ids.copy_(self.routings[number].ids[self._rank])
        tensors.gates.copy_(self.routings[number].gates[self._rank])


class DispatchedOperation(ExpertsOperation[D, T, S], Generic[D, T, S]):
    """An operation that begins with a dispatch: a result by rows, and their plan."""

    def draw(self, seed: int) -> None:
        self.drawn = DrawnTokens(self._problem, self._heap, seed, self._problem.hidden, drawn_deep)

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """Infinite unless the plan is right to the bit; else that of the rows that exist."""
        result, offsets, pairs, gates, *more = outputs
        plan = planned(self._problem, self.drawn.routings[number], self._heap.rank)
        if not torch.equal(offsets, plan.offsets):
            return WRONG
        end = int(offsets[-1])
        if not (torch.equal(pairs[:end], plan.pairs[:end]) and torch.equal(gates[:end], plan.gates[:end])):
            return WRONG
        if not end:
            return RIGHT
        places = plan.pairs[:end] // self._problem.top_k
        return self.error_of_rows([each[:end] for each in (result, *more)], number, places, plan)

    def unlike_rows(self, whole: Batch, first: int) -> list[int]:
        """Rows are found by their pairs."""
        here, there, width = self.batch().tensors, whole.tensors, self._problem.top_k
        pairs = here["pairs"][: int(here["offsets"][-1])].long()
        token, place = pairs // width % self._problem.tokens, pairs % width
        source = (pairs // (self._problem.tokens * width) + (first > 0)) % self._heap.world_size
        wanted = (source * whole.problem.batch_rows + first + token) * width + place
        known = there["pairs"][: int(there["offsets"][-1])].long()
        row_of = torch.full((whole.problem.batch_rows * self._heap.world_size * width,), -1, device=known.device)
        row_of[known] = torch.arange(len(known), device=known.device)
        name = self._kernels.results[0]
        return unlike(here[name][: len(pairs)], chosen_rows(there[name], row_of[wanted])).tolist()

    @abstractmethod
    def error_of_rows(self, rows: Sequence[torch.Tensor], number: int, places: torch.Tensor, plan: Plan) -> Error:
        """Error of the rows of each result but the plan, made from the tokens at these places of a set."""


class DispatchedWorkload(ExpertsWorkload):
    """A workload whose results are rows by expert, the first one, and their plan."""

    exchange = "all_gather"

    def heap_bytes(self, problem: Any) -> int:
        """The largest scratch, and the copy of the tokens that peers read."""
        copy: int = problem.tokens * problem.token_bytes
        return super().heap_bytes(problem) + copy

    def out_forms(self, world_size: int, operands: Operands, options: Sequence[Any]) -> list[OutForm]:
        """Rows and their plan, by the problem's ``capacity``; a problem has no symbolic dimensions."""
        ids, local = operands[1], options[self.options.index("experts")] // world_size
        capacity = world_size * ids.shape[0] * min(ids.shape[1], local)
        rows = (capacity, self.out_columns(operands, options)), self.out_dtype(operands, options)
        return [rows, ((local + 1,), torch.int32), ((capacity,), torch.int32), ((capacity,), torch.float32)]

    @abstractmethod
    def out_columns(self, operands: Operands, options: Sequence[Any]) -> int:
        """Elements of a row of the first result, of operands that fit each other."""


def check_routing(x: torch.Tensor, ids: torch.Tensor, gates: torch.Tensor) -> None:
    """Raise InvalidProblem unless ids and gates fit the tokens x [tokens, …]."""
    fits = ids.dim() == 2 and ids.shape[:1] == x.shape[:1] and gates.shape == ids.shape
    types = ids.dtype is torch.int32 and gates.dtype is torch.float32
    if not (fits and types and ids.is_contiguous() and gates.is_contiguous()):
        raise InvalidProblem(
            f"x is {list(x.shape)}, ids {list(ids.shape)} {ids.dtype}, gates {list(gates.shape)} {gates.dtype}: "
            "expected ids and gates [tokens, top_k], integers and float32, contiguous"
        )
