"""The number of polls that a wait in a kernel makes in a time."""

from __future__ import annotations

INTERPRETED_POLLS = 1000
"""Polls a second under the interpreter: see ``peers.MOMENT``."""

QUICK_POLLS = 1 << 22
"""Polls on a GPU before a wait sleeps between two of them: see ``heap/device.py``."""

QUICK_RATE = 3e6
"""Quick polls a second: 2.6 to 4.8 million on an H200."""

SLOW_RATE = 3e4
"""Slow polls a second: each sleeps 20 to 40 microseconds."""


def polls(seconds: float, *, interpreted: bool) -> int:
    """Polls that take about ``seconds``, at least one, at most what an int32 holds."""
    if interpreted:
        made = seconds * INTERPRETED_POLLS
    else:
        quick = QUICK_POLLS / QUICK_RATE
        made = min(seconds, quick) * QUICK_RATE + max(0.0, seconds - quick) * SLOW_RATE
    return max(1, min(int(made), (1 << 31) - 1))
