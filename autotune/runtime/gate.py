"""A lock that does not hang a forked child: data loaders fork while other threads of their program do look-ups."""

from __future__ import annotations

import os
import threading
from types import TracebackType

FORK_SECONDS = 5.0
"""Seconds for which a fork waits for the holder: long for a query, short for one that waits for its database."""


class Gate:
    """A re-entrant lock. A fork waits until it is free, and in the child it is free.

    So the holder's work in libraries with their own locks (such as SQLite) is done when the child begins.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._forking = False
        os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

    def _before(self) -> None:
        self._forking = self._lock.acquire(timeout=FORK_SECONDS)

    def _in_parent(self) -> None:
        if self._forking:
            self._lock.release()

    def _in_child(self) -> None:
        if self._forking:
            self._lock.release()
        else:
            self._lock = threading.RLock()  # its holder is a thread of the parent
