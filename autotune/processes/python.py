"""Starting our own Python processes: they import what their parent does, and nothing from the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

PACKAGE_ROOT = Path(__file__).parents[2]


def start_python(
    module: str, connection: Connection, *, environment: Mapping[str, str] | None = None, log: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Run a module of ours as a process that talks over ``connection``, whose descriptor is its first argument and this
    process's id its second (see ``die_with_parent``); stdout and stderr go to ``log``, if there is one.

    It leads a session of its own: Ctrl-C is for the parent alone, and what the process starts can be killed with it.
    """
    return subprocess.Popen(
        # -P: otherwise -m puts the current folder before the standard library, and a gzip.py there would be run.
        [sys.executable, "-P", "-m", module, str(connection.fileno()), str(os.getpid())],
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**(os.environ if environment is None else environment), "PYTHONPATH": os.pathsep.join(_search_path())},
        start_new_session=True,
    )


def _search_path() -> list[str]:
    """This process's. An empty entry, the current folder, stays only where this package was imported from there."""
    here = Path.cwd() if "" in sys.path else None
    root = str(PACKAGE_ROOT) if here == PACKAGE_ROOT else ""
    return [path or root for path in sys.path if path or root]
