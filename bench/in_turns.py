"""A host's stopwatch: ways to do the same, in turns, of many rounds the best."""

from __future__ import annotations

import time
from collections.abc import Callable


def best(
    ways: dict[str, Callable[[], object]], settle: Callable[[], object], rounds: int, calls: int
) -> dict[str, float]:
    """Microseconds of a call, by name. ``settle`` comes before each way's ``calls``, and at the end."""
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, call in ways.items():
            settle()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            seconds[name] = min(seconds[name], (time.perf_counter() - begin) / calls)
    settle()
    return {name: value * 1e6 for name, value in seconds.items()}
