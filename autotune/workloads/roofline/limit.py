"""The roofline: what a problem takes at least, by the work that it is and by what the device was measured to do."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.db.records import Roofline
from autotune.problem import Problem

WORK = {"flops": "flops", "memory": "bytes_read", "links": "bytes_moved"}
"""The problem's field that counts the work of each resource; problems of one's own may lack it."""


def roofline(problem: Problem, rates: Mapping[str, float]) -> Roofline | None:
    """From what one device does in a microsecond, by resource; None where nothing is known of rates or of the work."""
    work = {resource: getattr(problem, field, 0) for resource, field in WORK.items()}
    times = {resource: work[resource] / rate for resource, rate in rates.items() if work.get(resource)}
    return Roofline(dict(rates), times) if times else None
