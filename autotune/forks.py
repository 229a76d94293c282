"""A gate for forks: data loaders fork while other threads of their program import modules and look configs up."""

from __future__ import annotations

# These two hold locks of theirs over a fork, and hooks run in reverse. Registered after ours, logging's would keep its
# lock, which imports need, while ours waits; and the other would release, in the parent, a lock that it had not taken.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading
import time
import weakref

FORK_SECONDS = 5.0
"""Seconds for which a fork waits: long for a query or an import, short for one that waits for its database."""

YIELD_SECONDS = 0.1
"""Seconds for which new work waits for a fork. It goes on then: what it holds may be what the fork waits for."""

POLL_SECONDS = 0.001


class ForksWait:
    """Work that a fork waits for, such as imports and queries; threads do it side by side.

    A child that began in its midst would find locks (of a module, of SQLite) whose holder is a thread of its parent.
    """

    def __init__(self) -> None:
        # Not a Condition: Ctrl-C may come at any call of a Python function, its own __exit__ too, which would leave it
        # locked for other threads. The lock of C is free outside of its block.
        self._lock = threading.RLock()
        self._depths: dict[int, int] = {}
        """Depth of each thread in such work."""
        self._forks = 0
        os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def __enter__(self) -> None:
        me = threading.get_ident()
        if me in self._depths:  # which no other thread changes
            self._depths[me] += 1
            return
        if self._forks:
            until = time.monotonic() + YIELD_SECONDS
            while self._forks and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
        with self._lock:
            self._depths[me] = 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        self._depths[me] -= 1
        if not self._depths[me]:
            del self._depths[me]

    def _before(self) -> None:
        me, until = threading.get_ident(), time.monotonic() + FORK_SECONDS
        self._lock.acquire()  # held over the fork: nobody begins during it
        self._forks += 1
        while not self._depths.keys() <= {me} and time.monotonic() < until:
            self._lock.release()
            try:
                time.sleep(POLL_SECONDS)
            finally:
                self._lock.acquire()

    def _in_parent(self) -> None:
        self._forks -= 1
        self._lock.release()

    def _in_child(self) -> None:
        me = threading.get_ident()
        self._lock, self._forks = threading.RLock(), 0
        self._depths = {thread: depth for thread, depth in self._depths.items() if thread == me}


FORKS_WAIT = ForksWait()
"""Held around every import that a call of this package makes, and around every use of a database."""


class Lock:
    """A re-entrant lock, ``with lock.held``. A forked child has it free, even where a thread of the parent holds it."""

    def __init__(self) -> None:
        self.held = threading.RLock()
        _LOCKS.add(self)

    def in_child(self) -> None:
        if self.held.acquire(blocking=False):  # free, or held by the thread that forked
            self.held.release()
        else:
            self.held = threading.RLock()


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _free_locks() -> None:
    for lock in _LOCKS:
        lock.in_child()


os.register_at_fork(after_in_child=_free_locks)
