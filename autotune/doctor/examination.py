"""All checks, and their run in turn; a check that raises becomes a finding."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from autotune.doctor.checks import gpus, software, storage
from autotune.doctor.finding import Finding, broken
from autotune.doctor.host import Host
from autotune.errors import AutotuneError

Check = Callable[[Host], Finding]

EXPECTED = (AutotuneError, ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, ValueError,
            subprocess.SubprocessError)  # fmt: skip
"""Errors that a check may raise on a machine nobody has foreseen."""


def checks(url: str) -> Mapping[str, Check]:
    """By name, in the order in which they run, for the database at a URL."""
    return {
        "settings": software.settings,
        "torch": software.torch,
        "GPUs": gpus.gpus,
        "links": gpus.links,
        "peer access": gpus.peer_access,
        "link rates": gpus.link_rates,
        "clocks": gpus.clocks,
        "GPU memory": gpus.memory_in_use,
        "shared memory": gpus.shared_memory,
        "Iris": software.iris,
        "compiler": software.compiler,
        "interpreter": software.interpreter,
        "launcher": software.launcher,
        "kernel cache": storage.kernel_cache,
        "/dev/shm": storage.shm,
        "database": functools.partial(storage.database, url=url),
        "database disk": functools.partial(storage.database_disk, url=url),
    }


def examine(
    host: Host, url: str, meanwhile: Callable[[str], AbstractContextManager[object]] = nullcontext
) -> Iterator[tuple[str, Finding]]:
    """Yields every check's name and finding as it is made; ``meanwhile`` is entered while the check of a name runs."""
    for name, check in checks(url).items():
        with meanwhile(name):
            found = _made(check, host)
        yield name, found


def _made(check: Check, host: Host) -> Finding:
    try:
        return check(host)
    except EXPECTED as error:
        first_line = (str(error).splitlines() or [""])[0]
        return broken(
            f"check failed: {type(error).__name__}: {first_line}",
            "fix what it names; if it is not yours to fix, report it with this line",
        )
