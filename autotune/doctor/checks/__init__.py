"""All checks, by name, in the order in which they run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from autotune.doctor.checks import gpus, software, storage
from autotune.doctor.finding import Finding
from autotune.doctor.host import Host

Check = Callable[[Host], Finding]


def checks(url: str) -> Mapping[str, Check]:
    """All checks, for the database at a URL."""
    return {
        "settings": software.settings,
        "torch": software.torch,
        "GPUs": gpus.gpus,
        "links": gpus.links,
        "peer access": gpus.peer_access,
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
