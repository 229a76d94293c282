"""The examination: every check in turn, none of which can end it."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterator, Mapping

from autotune.doctor import gpus, software, storage
from autotune.doctor.finding import Finding, broken
from autotune.doctor.host import Host
from autotune.errors import AutotuneError

Check = Callable[[Host], Finding]

CHECKS: Mapping[str, Check] = {
    "torch": software.torch,
    "GPUs": gpus.gpus,
    "links": gpus.links,
    "peer access": gpus.peer_access,
    "clocks": gpus.clocks,
    "GPU memory": gpus.memory_in_use,
    "shared memory": gpus.shared_memory,
    "Iris": software.iris,
    "compiler": software.compiler,
    "launcher": software.launcher,
    "kernel cache": storage.kernel_cache,
    "/dev/shm": storage.shm,
}
"""By name, in the order in which they are made; those of the database, which need its URL, come after them."""

EXPECTED = (AutotuneError, ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, ValueError,
            subprocess.SubprocessError)  # fmt: skip
"""What a machine that nobody has foreseen may raise inside a check."""


def examine(host: Host, url: str) -> Iterator[tuple[str, Finding]]:
    """Every check's name and finding, as they are made."""
    of_the_database: Mapping[str, Check] = {
        "database": functools.partial(storage.database, url=url),
        "database disk": functools.partial(storage.database_disk, url=url),
    }
    for name, check in {**CHECKS, **of_the_database}.items():
        yield name, _made(check, host)


def _made(check: Check, host: Host) -> Finding:
    try:
        return check(host)
    except EXPECTED as error:
        first_line = (str(error).splitlines() or [""])[0]
        return broken(
            f"could not be checked: {type(error).__name__}: {first_line}",
            "mend what it names; if it is nothing of yours, report it with this line",
        )
