"""The operands of a problem with a GEMM: element types and scales, said and checked once for all workloads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.dtypes import COMBINATIONS, DTYPES, FP8, SCALE_BLOCK, SCALES
from autotune.errors import InvalidProblem
from autotune.problem import Problem, choice, flag

B_ORDERS = ("kn", "nk")

RESIDUAL = "add a residual of the result's shape and type, before the result is rounded"

WIRES = ("auto", "fp8")

WIRE = ("how parts of the sum travel: rounded to the result's type (auto); or our kernels may send them as fp8, with "
        "a scale per row of a tile")  # fmt: skip

GATE_UP = ("halves", "interleaved")
"""Gate and up in a B: [gate, up], or in turns from column to column."""

SCALES_HELP = "scales of fp8: per tensor; per row of A and column of B; or per block, 1x128 of A and 128x128 of B"

FAST_ACCUM = "accumulate fp8 products in the tensor cores of sm_90: faster, less exact"

LIBRARY_MULTIPLE = 16
"""Columns and depth of an fp8 GEMM are multiples of this: the library takes no others, and neither do vector loads."""


class ScaledRows(Problem):
    """The rules for rows that are fp8 and have scales, in problems that have this field."""

    scales: str

    @property
    def scaled(self) -> bool:
        return self.scales != "none"

    def scales_of_a_row(self, width: int) -> int:
        """Scales of a row of that many elements, which may have one of its own or one for each block."""
        return {"none": 0, "row": 1}.get(self.scales, blocks(width))

    def check_scales(self, columns: str, width: int) -> None:
        """Raise InvalidProblem unless the element type, the scales and the ``width`` of a row go together.

        ``columns``: the words for its elements.
        """
        allowed = COMBINATIONS[self.dtype].scales
        if self.scales not in allowed:
            (field,) = (each for each in dataclasses.fields(self) if each.name == "scales")
            kinds = [kind for kind in allowed if kind in field.metadata["allowed"]]
            raise InvalidProblem(
                f"scales={self.scales}: with dtype={self.dtype} allowed: {', '.join(kinds)}"
                + ("" if self.scaled else "; say how the operands are scaled")
            )
        if self.scaled:
            self.check_multiple(columns, width, SCALE_BLOCK if self.scales == "block" else LIBRARY_MULTIPLE)

    def check_multiple(self, what: str, value: int, unit: int) -> None:
        """Raise InvalidProblem unless an fp8 operand's size is a multiple of ``unit``."""
        if value % unit:
            nearest = " or ".join(str(n * unit) for n in (value // unit, value // unit + 1) if n)
            raise InvalidProblem(
                f"{value} {what} on each rank: with dtype={self.dtype} scales={self.scales} they must be a "
                f"multiple of {unit}; use {nearest}"
            )


class MatrixOperands(ScaledRows):
    """The rules for element types and scales of an A and a B, in problems that have these fields."""

    out_dtype: str
    fast_accum: bool
    b_order: str

    @property
    def b_dtype(self) -> str:
        return COMBINATIONS[self.dtype].b

    @property
    def result_dtype(self) -> str:
        return COMBINATIONS[self.dtype].results[0] if self.out_dtype == "auto" else self.out_dtype

    @property
    def result_size(self) -> int:
        """Bytes of an element of the result."""
        return DTYPES[self.result_dtype].size

    def check_operands(self, columns: int, width: int) -> None:
        """Raise InvalidProblem unless the element types, the scales and a rank's sizes go together.

        ``columns`` are those of a rank's B, ``width`` those of a rank's A. Where ``out_dtype`` says the default, it
        becomes auto: one problem has one key.
        """
        allowed = COMBINATIONS[self.dtype]
        if self.result_dtype not in allowed.results:
            raise InvalidProblem(f"out_dtype={self.out_dtype}: with dtype={self.dtype} allowed: "
                                 f"auto, {', '.join(allowed.results)}")  # fmt: skip
        if self.out_dtype == allowed.results[0]:
            object.__setattr__(self, "out_dtype", "auto")
        self.check_scales("columns of A", width)
        if self.scaled:
            if self.b_order != "nk":
                raise InvalidProblem(f"b_order={self.b_order}: B of {self.dtype} is stored transposed, b_order=nk")
            self.check_multiple("columns of B", columns, LIBRARY_MULTIPLE)
        if self.fast_accum and self.scales not in ("tensor", "row"):
            raise InvalidProblem(
                f"fast_accum with scales={self.scales}: only sums over the whole depth of fp8 products, with scales "
                "tensor or row, can stay in the tensor cores"
            )


@dataclass(frozen=True, kw_only=True)
class GemmProblem(MatrixOperands):
    """A problem whose ranks multiply A and B; ``COMBINATIONS`` has what goes with what.

    With fp8 operands the product is that of the dequantised matrices: each element times its scale. The scales are
    fp32. ``tensor``: one for each rank's A (where A is gathered, one for all of it) and one for its B. ``row``: one
    for each row of A and each column of B. ``block``: one for each row and 128 of K in A, and for each 128 of K and 128
    columns in B.
    """

    dtype: str = choice("element type of A and B; accumulation is fp32", tuple(COMBINATIONS), "bf16")
    out_dtype: str = choice(
        "element type of the result; auto is bf16 where A and B are fp8, else theirs", ("auto", *DTYPES), "auto",
    )  # fmt: skip
    scales: str = choice(SCALES_HELP, SCALES, "none")
    b_order: str = choice("storage of B: row by row (kn), or transposed (nk)", B_ORDERS, "kn")
    bias: bool = flag("add a bias, one element per column of the result")
    fast_accum: bool = flag(FAST_ACCUM)

    @property
    def gemm(self) -> tuple[int, int, int]:
        """Rows, columns and depth of one rank's GEMM."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Floating-point operations of one rank's GEMM."""
        return 2 * math.prod(self.gemm)

    @property
    def residual(self) -> bool:
        """True if a residual is added to the result."""
        return False

    @property
    def wire(self) -> str:
        """One of ``WIRES``: how parts of a sum over ranks may travel."""
        return "auto"

    @property
    def gated(self) -> bool:
        """True if B has gate and up, so that the result has half as many columns as their product."""
        return False

    @property
    def halves(self) -> bool:
        """True if the gate is one half of B's columns and up the other."""
        return False

    @classmethod
    def completed(cls, given: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
        """B of fp8 is stored transposed, whatever the default problem has."""
        order = {"b_order": "nk"} if given.get("dtype") in FP8 else {}
        return {**default, **order, **given}


class GatedColumns:
    """The rules for a B with gate and up, in problems that have these fields."""

    epilogue: str
    gate_up: str

    @property
    def gated(self) -> bool:
        """True if B has gate and up, so that the result has half as many columns as their product."""
        return self.epilogue != "none"

    @property
    def halves(self) -> bool:
        """True if the gate is one half of B's columns and up the other."""
        return self.gated and self.gate_up == "halves"

    def check_gate(self) -> None:
        """Raise InvalidProblem where gate and up are said to lie otherwise, and B has none."""
        if self.gate_up != "halves" and not self.gated:
            raise InvalidProblem(f"gate_up={self.gate_up}: B has gate and up only with an epilogue, such as swiglu")


class SummedProblem(GemmProblem):
    """A problem whose C is a sum over ranks: each has k / world_size columns of A [m, k], and rows of B [k, n]."""

    m: int
    n: int
    k: int

    @property
    def k_local(self) -> int:
        """Columns of A and rows of B on one rank."""
        return self.k // self.world_size

    @property
    def rows(self) -> int:
        return self.m

    @property
    def wire_size(self) -> int:
        """Bytes of an element of a part on its way, at least."""
        return 1 if self.wire == "fp8" else self.result_size

    @property
    def gemm(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k_local

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads from its memory: its A, its B, the residual."""
        residual = self.rows * self.n * self.result_size if self.residual else 0
        return (self.m + self.n) * self.k_local * self.element_size + residual


def blocks(size: int) -> int:
    """Scales of ``block`` along a dimension."""
    return -(-size // SCALE_BLOCK)


def scale_shapes(scales: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the scales of an A [rows, K] and a B [K, columns]."""
    (rows, width), (depth, columns) = a, b
    if scales == "tensor":
        return (1,), (1,)
    if scales == "row":
        return (rows, 1), (1, columns)
    return (rows, blocks(width)), (blocks(depth), blocks(columns))
