"""Runs a module as a program that dies with its parent: ``python -m autotune.processes.bound PARENT MODULE WORDS…``."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

from autotune.processes.python import with_search_path


def start_bound(
    module: str, *words: str, environment: Mapping[str, str], stdout: IO[str] | int, stderr: IO[str] | int
) -> subprocess.Popen[str]:
    """Start a module of this package with command-line ``words``, in a session of its own.

    It imports what this process imports and nothing from the current folder. It dies with the thread that starts it.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(os.getpid()), module, *words],
        stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, errors="backslashreplace",
        env=with_search_path(environment), start_new_session=True,
    )  # fmt: skip


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()


PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, its parent's process id, is gone (Linux).

    The kernel watches the thread that started this process, so that thread has to live as long as the gang.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
