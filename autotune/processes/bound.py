"""Processes that die with their parent, and the connection to it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1


def parents_connection() -> Connection:
    """In a process of ``start_python``: the connection to its parent, with which it dies."""
    die_with_parent(int(sys.argv[2]))
    return Connection(int(sys.argv[1]))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, its parent's process id, is gone (Linux).

    The kernel watches the thread that started this process, so that thread has to live as long as the gang.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
