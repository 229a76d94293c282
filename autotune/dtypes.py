"""Element types: everything that is known of one stands in its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """An element type. Its rounding errors were measured on normally distributed numbers."""

    size: int
    """Bytes of an element."""
    torch: str
    triton: str
    aliases: tuple[str, ...]
    """Names that people give in its place."""
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
