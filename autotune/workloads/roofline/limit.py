"""The roofline: a problem's lowest possible latency, from its work and the device's measured rates."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.db.records import Roofline
from autotune.problem import Problem

WORK = {"flops": "flops", "memory": "bytes_read", "links": "bytes_moved"}
"""The problem's field with the work per resource; users' problems may lack it."""


def roofline(problem: Problem, rates: Mapping[str, float]) -> Roofline | None:
    """The roofline from one device's rates per microsecond; None if rates or work are unknown."""
    work = {resource: getattr(problem, field, 0) for resource, field in WORK.items()}
    times = {resource: work[resource] / rate for resource, rate in rates.items() if work.get(resource)}
    return Roofline(dict(rates), times) if times else None
