"""Ends of processes, and their left-overs."""

from __future__ import annotations

import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def gone(pid: int, within: float = 0.0) -> bool:
    """True if the process ends within ``seconds``; an unreaped zombie counts."""
    deadline = time.monotonic() + within
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


def shared_memory() -> set[str]:
    """The names of ours that there are in shared memory."""
    return {path.name for path in SHARED_MEMORY.glob("iris-autotune-*")}


def left_in_shared_memory(before: set[str], within: float = 120.0) -> set[str]:
    """Names that have come since, and stay: those of other processes' heaps are gone once these are open."""
    left, deadline = shared_memory() - before, time.monotonic() + within
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left &= shared_memory()
    return left
