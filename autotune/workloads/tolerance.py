"""How far a result is from its reference, and how far a right one may be."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.dtypes import DTYPES


@dataclass(frozen=True)
class Tolerance:
    """How far a right result may be from the reference."""

    overall: float
    """Largest ``|out - ref| / |ref|`` (Frobenius norms)."""
    element: float
    """Largest ``max|out - ref| / rms(ref)``: shows a single stale line that vanishes in the overall norm."""


ROUNDED_ONCE = {name: Tolerance(*each.rounded_once) for name, each in DTYPES.items()}
"""By the element type of a result that was accumulated in fp32."""


@dataclass(frozen=True)
class Error:
    """How far a result is from the reference; NaN where the result holds one."""

    overall: float
    element: float
