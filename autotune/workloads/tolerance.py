"""The error of a result, and the tolerance of a right one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.dtypes import DTYPES


@dataclass(frozen=True)
class Tolerance:
    overall: float
    """Largest ``|out - ref| / |ref|`` (Frobenius norms)."""
    element: float
    """Largest ``max|out - ref| / rms(ref)``: shows a single stale line that vanishes in the overall norm."""


ROUNDED_ONCE = {name: Tolerance(*each.rounded_once) for name, each in DTYPES.items()}
"""Tolerance by the element type of a result that was accumulated in fp32."""


@dataclass(frozen=True)
class Error:
    """Distance of a result from the reference; NaN if the result holds one."""

    overall: float
    element: float

    @classmethod
    def largest(cls, errors: Sequence[Error]) -> Error:
        """The largest of each; NaN counts as that."""
        both = [(each.overall, each.element) for each in errors]
        return cls(*(max(values, key=lambda each: (math.isnan(each), each)) for values in zip(*both, strict=True)))


RIGHT, WRONG = Error(0.0, 0.0), Error(math.inf, math.inf)
"""Errors of results that must be equal to the bit."""
