"""Starts our own Python processes: they import what their parent does, and nothing from the current folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from autotune.processes.forked import Forked, fork_python, server_with

PACKAGE_ROOT = Path(__file__).parents[2]

DYING = 20.0
"""Seconds for killed processes to end; unmapping a large heap on a busy host takes time."""


Process = subprocess.Popen[bytes] | Forked


def start_python(
    module: str, connection: Connection, *, environment: Mapping[str, str] | None = None, log: IO[bytes] | None = None,
    imports: str | None = None,
) -> Process:  # fmt: skip
    """Run a module of this package as a process that talks over ``connection``, whose descriptor is its first argument
    and its parent's process id its second (see ``die_with_parent``). Its stdout and stderr go to ``log``, by
    default to this process's stderr: stdout is for the data of a command.

    ``imports`` is a module that imports what takes long: a fork server does that once, and forks all such processes.
    Where that fails the process imports it all itself, and says in its log what is wrong.

    It leads its own session: Ctrl-C reaches only the parent, and a kill of the session includes the process's children.
    """
    environment = with_search_path(os.environ if environment is None else environment)
    there = 2 if log is None else log.fileno()
    if imports is not None:
        forked = fork_python(imports, module, connection, environment, _search_path(), there)
        if forked is not None:
            return forked
    return subprocess.Popen(
        # -P: otherwise -m puts the current folder before the standard library, and a gzip.py there would be run.
        [sys.executable, "-P", "-m", module, str(connection.fileno()), str(os.getpid())],
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=there if log is not None or sys.stderr is not None else None,  # None: what this process has, or lacks
        stderr=log,
        env=environment,
        start_new_session=True,
    )


def kill_all(processes: Sequence[Process]) -> None:
    """Kill processes with what they have started, and wait for their ends.

    One that hangs in its GPU's driver cannot be killed, and is left to the kernel.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + DYING
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, deadline - time.monotonic()))


def import_ahead(imports: str, environment: Mapping[str, str]) -> None:
    """Have the fork server ready that ``start_python`` will ask for; returns at once."""
    server_with(imports, with_search_path(environment))


def with_search_path(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to import what this one imports."""
    return {**environment, "PYTHONPATH": os.pathsep.join(_search_path())}


def _search_path() -> list[str]:
    """This process's search path. An empty entry, the current folder, stays only if this package was imported from
    there.
    """
    here = Path.cwd() if "" in sys.path else None
    root = str(PACKAGE_ROOT) if here == PACKAGE_ROOT else ""
    return [path or root for path in sys.path if path or root]
