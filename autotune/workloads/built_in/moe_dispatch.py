"""Dispatch of tokens to the ranks of their experts, laid out by expert, as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.errors import InvalidProblem
from autotune.kernels.gemm.problem import blocks
from autotune.kernels.launching.contract import Kernels
from autotune.kernels.launching.tensors import OPERAND_DTYPES, element_type
from autotune.kernels.moe.routing import Plan
from autotune.kernels.moe_dispatch.exchange import Scratch
from autotune.kernels.moe_dispatch.launch import KERNELS, SCALED
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.kernels.moe_dispatch.tensors import Tensors
from autotune.workloads.dispatched import DispatchedOperation, DispatchedWorkload, check_routing
from autotune.workloads.interface import Run
from autotune.workloads.launched import Operands, OutForm
from autotune.workloads.moded import ModedWorkload
from autotune.workloads.tolerance import RIGHT, WRONG, Error, Tolerance

EXACT = Tolerance(0.0, 0.0)
"""A dispatch moves and does not compute."""


class MoeDispatchOperation(DispatchedOperation[MoeDispatch, Tensors, Scratch]):
    def error_of_rows(self, rows: Sequence[torch.Tensor], number: int, places: torch.Tensor, plan: Plan) -> Error:
        """Nothing, or infinite: a row is its token to the bit, with that token's scales, or wrong."""
        laid_out, *of_rows = rows
        tokens, scales = self.drawn.sent(number, places)
        right = scales is None or torch.equal(of_rows[0], scales)
        return RIGHT if right and torch.equal(laid_out.view(torch.uint8), tokens.view(torch.uint8)) else WRONG

    def parts(self) -> dict[str, Run]:
        """An even all-to-all, and a copy of as many rows as a rank gets on average."""
        problem, x = self._problem, self._tensors.x
        x = x.view(torch.int16) if problem.scaled else x  # torch need not select rows of fp8
        tokens, rows = torch.zeros_like(x), x.new_empty((problem.tokens * problem.top_k, x.shape[1]))
        place = torch.arange(rows.shape[0], device=x.device) % problem.tokens

        def lay_out() -> None:
            torch.index_select(tokens, 0, place, out=rows)

        return {"all_to_all": self.exchange(), "layout": lay_out}


class MoeDispatchWorkload(ModedWorkload, DispatchedWorkload):
    """Joins problem, kernels and space. Its operator takes tokens without scales."""

    problem_type = MoeDispatch
    operation_type = MoeDispatchOperation
    kernels = KERNELS
    options = ("experts", "routing", "exponent", "histogram")

    def kernels_of(self, problem: MoeDispatch) -> Kernels[Any, Any, Any, Any]:
        return SCALED if problem.scaled else self.kernels

    def tolerance(self, problem: MoeDispatch) -> Tolerance:
        return EXACT

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> MoeDispatch:
        """X is a contiguous matrix, and ids and gates have a row for each of its rows."""
        x, ids, gates, *scale_x = operands
        dtype = element_type({"x": x}, OPERAND_DTYPES)
        check_routing(x, ids, gates)
        if x.dim() != 2 or not x.is_contiguous():
            raise InvalidProblem(f"x is {list(x.shape)}, strides {x.stride()}: expected [tokens, hidden], contiguous")
        given = dict(zip(self.options, options, strict=True))
        tokens, hidden = x.shape
        return MoeDispatch(
            tokens=tokens, hidden=hidden, top_k=ids.shape[1], **given, dtype=dtype,
            scales=kind_of(x, scale_x[0]) if scale_x else "none", world_size=world_size,
        )  # fmt: skip

    def out_columns(self, operands: Operands, options: Sequence[Any]) -> int:
        columns: int = operands[0].shape[1]
        return columns


class ScaledWorkload(MoeDispatchWorkload):
    """Dispatch of fp8 tokens: their scales are operands, and results by row."""

    kernels = SCALED

    def out_forms(self, world_size: int, operands: Operands, options: Sequence[Any]) -> list[OutForm]:
        (rows, dtype), *plan = super().out_forms(world_size, operands, options)
        return [(rows, dtype), *plan, ((rows[0], operands[-1].shape[1]), torch.float32)]


def kind_of(x: torch.Tensor, scale_x: torch.Tensor) -> str:
    """The problem's word for the scales of x [tokens, hidden]. Raises InvalidProblem where there is none."""
    kinds: dict[tuple[int, ...], str] = {(x.shape[0], blocks(x.shape[1])): "block", (x.shape[0], 1): "row"}
    kind = kinds.get(tuple(scale_x.shape))
    if kind is None or scale_x.dtype != torch.float32 or not scale_x.is_contiguous():
        raise InvalidProblem(
            f"scale_x is {list(scale_x.shape)} {scale_x.dtype}, strides {scale_x.stride()}: with x {list(x.shape)} "
            f"expected {' or '.join(str(list(shape)) for shape in kinds)} {torch.float32}, contiguous"
        )
    return kind


WORKLOAD = MoeDispatchWorkload()
WITH_SCALES = ScaledWorkload()
