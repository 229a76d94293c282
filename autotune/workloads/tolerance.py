"""The error of a result, and the tolerance of a right one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    overall: float
    """Largest ``|out - ref| / |ref|`` (Frobenius norms)."""
    element: float
    """Largest ``max|out - ref| / rms(ref)``: shows a single stale line that vanishes in the overall norm."""


ROUNDED_ONCE = {
    # The output's rounding: 2**-9 of each element in bf16 (the interpreter truncates: 2**-8), 2**-12 in fp16.
    "bf16": Tolerance(overall=6e-3, element=0.06),
    "fp16": Tolerance(overall=8e-4, element=0.01),
    "fp32": Tolerance(overall=1e-5, element=1e-4),
}
"""By the element type of a result that was accumulated in fp32."""


@dataclass(frozen=True)
class Error:
    """Distance of a result from the reference; NaN if the result holds one."""

    overall: float
    element: float
