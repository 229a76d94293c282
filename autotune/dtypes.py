"""Element types: everything that is known of one stands in its row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class OperandType:
    size: int
    torch: str
    triton: str
    aliases: tuple[str, ...]
    """Names that people give in its place."""


@dataclass(frozen=True)
class ElementType(OperandType):
    """An element type of operands and results. Its rounding errors were measured on normally distributed numbers."""

    rounded_once: tuple[float, float]
    """Tolerance of a result that was accumulated in fp32 and rounded once: overall, and of an element."""
    rounding: float = 0.0
    """Error of rounding once, as a share (Frobenius norms), at the worst scale; 0 where the depth decides instead."""
    half_unit: float = 0.0
    """Half a unit in the last place of a number, at most, as a share of it; 0 likewise."""


DTYPES: Mapping[str, ElementType] = {
    # The output's rounding: 2**-9 of each element in bf16 (the interpreter truncates: 2**-8), 2**-12 in fp16.
    "bf16": ElementType(2, "bfloat16", "bfloat16", ("bfloat16",), (6e-3, 0.06), rounding=1.66e-3, half_unit=2**-8),
    "fp16": ElementType(2, "float16", "float16", ("float16", "half"), (8e-4, 0.01), rounding=2.08e-4, half_unit=2**-11),
    "fp32": ElementType(4, "float32", "float32", ("float32", "float"), (1e-5, 1e-4)),
}

FP8: Mapping[str, OperandType] = {
    "fp8": OperandType(1, "float8_e4m3fn", "float8e4nv", ("fp8_e4m3", "e4m3", "float8_e4m3fn", "float8", "e4m3fn")),
    "fp8_e5m2": OperandType(1, "float8_e5m2", "float8e5", ("e5m2", "float8_e5m2")),
    "fp8_fnuz": OperandType(1, "float8_e4m3fnuz", "float8e4b8", ("e4m3fnuz", "float8_e4m3fnuz")),
}
"""Types of operands alone, which come with scales."""

OPERAND_TYPES: Mapping[str, OperandType] = {**DTYPES, **FP8}


@dataclass(frozen=True)
class Combination:
    """The types and scales that may stand beside one element type of A in a GEMM."""

    b: str
    results: tuple[str, ...]
    """Element types of the result, the default first."""
    scales: tuple[str, ...]


_SCALED = Combination("fp8", ("bf16", "fp16", "fp32"), ("tensor", "row", "block"))

COMBINATIONS: Mapping[str, Combination] = {
    "bf16": Combination("bf16", ("bf16", "fp32"), ("none",)),
    "fp16": Combination("fp16", ("fp16", "fp32"), ("none",)),
    "fp32": Combination("fp32", ("fp32",), ("none",)),
    "fp8": _SCALED,
    "fp8_e5m2": _SCALED,  # training's gradients
    "fp8_fnuz": dataclasses.replace(_SCALED, b="fp8_fnuz"),
}
"""Every GEMM that exists, by A's element type. All accumulate in fp32."""

SCALES = ("none", "tensor", "row", "block")

WGMMA_ROWS = 64
"""Rows of a tile from which on sm_90 multiplies it by wgmma, which reads both operands from shared memory; and sm_100
by tcgen05, into tensor memory.
"""

SCALE_BLOCK = 128
"""Elements of K that one scale of ``block`` covers, in A and B; in B as many columns, too."""


def multiplies(kind: str, arch: str, dtype: str) -> bool:
    """True if a GPU's matrix units take operands of this type, or the interpreter does."""
    if dtype not in FP8:
        return True
    if kind == "hip":
        return dtype in {"gfx942": ("fp8_fnuz",), "gfx950": ("fp8", "fp8_e5m2")}.get(arch, ())
    return dtype != "fp8_fnuz" and (kind == "interpreter" or int(arch.removeprefix("sm_")) >= 89)


def rounds_to_fp8(kind: str, arch: str) -> bool:
    """True if a GPU has some fp8, and so rounds to it."""
    return any(multiplies(kind, arch, dtype) for dtype in ("fp8", "fp8_fnuz"))
