"""The processes that share a heap on CPUs: a wait for a dead peer need not go on."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterable

MOMENT = 1
"""Milliseconds between two polls of a wait: where cores are fewer than ranks, one that polls all the time holds up the
one that it waits for.
"""


class Peers:
    """Watches processes through pidfds (Linux 5.3), which become readable when their process ends."""

    def __init__(self) -> None:
        self._descriptors: frozenset[int] = frozenset()

    def watch(self, pids: Iterable[int]) -> Callable[[], None]:
        """Watch processes of this host until the returned function is called. On kernels without pidfds no process
        counts as gone.
        """
        added = []
        with contextlib.suppress(OSError):
            for pid in pids:
                added.append(os.pidfd_open(pid))
        self._descriptors |= set(added)

        def end() -> None:
            self._descriptors -= set(added)
            for descriptor in added:
                os.close(descriptor)

        return end

    @property
    def end(self) -> bool:
        """Give way to them for ``MOMENT``: true if any of them has ended, and then at once. A property, since Triton's
        hash of a device function takes no calls.
        """
        poll = select.poll()  # a new one: threads may not share it
        for descriptor in self._descriptors:
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(MOMENT))


PEERS = Peers()
"""The peers of this process."""
