"""Runs a module as a program that dies with its parent: ``python -m autotune.processes.bound PARENT MODULE WORDS…``."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

from autotune.processes.lifeline import die_with_parent
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
