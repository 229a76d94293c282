"""A lack of memory as the cause of a failure: it shows as any error of whatever asked for memory last."""

from __future__ import annotations

import contextlib
import re
import resource

SHORT = re.compile(
    "MemoryError|bad_alloc|failed to map segment|(cannot|can't) allocate memory|memory allocation|not enough memory"
    "|out of memory|can't start new thread|resource temporarily unavailable|memory: ",
    re.IGNORECASE,
)
"""Words of Python, C++, the loader of libraries, PyTorch, OpenBLAS, the system (the one about a resource is of a thread
or process too many), and of ``shortage`` itself.
"""

NEARLY = 0.9
"""Part of the allowed addresses from which on they explain a failure that says nothing of memory."""


def shortage(failure: str, process: int | None = None) -> str:
    """The cause of a failure that a lack of memory explains, in one line; empty for another one.

    ``failure`` is a traceback or what a process printed last. ``process`` is the one that failed, if it still lives:
    where it had no addresses left (``ulimit -v``), an import may have failed with any error. Children have the limit of
    this process.
    """
    lines = [line.strip() for line in failure.splitlines() if line.strip()]
    told = [line for line in lines if SHORT.search(line)]
    limit = _limit()
    if not told and not (process is not None and limit is not None and _peak(process) > NEARLY * limit):
        return ""
    return f"memory: {(told or lines)[-1][:200]}"


def advice() -> str:
    """Advice about a lack of memory, to follow its cause."""
    limit = _limit()
    if limit is None:
        return "free some, or raise what this user may take (ulimit -v, ulimit -u)"
    return f"a process may use {limit / 1e9:.3g} GB of addresses here: raise that with ulimit -v"


def _limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _peak(process: int) -> int:
    """The most bytes of addresses that a process has used; 0 if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as status:
        for line in status:
            if line.startswith("VmPeak:"):
                return int(line.split()[1]) * 1024
    return 0
