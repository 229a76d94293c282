"""Between hosts: a thread of each host's first rank carries what its ranks have to tell to the other hosts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

from autotune.agreement import Agreement

PERIOD = 0.02
"""Seconds between two looks. What comes late by it are only first calls, and failures."""


class Relay:
    """Carries what ``tell`` returns here to ``hear`` on each other host, by the store of the ranks' group.

    Ends by itself once the store is gone; waits for ranks of other hosts then end by their time-outs.
    """

    def __init__(
        self, agreement: Agreement, others: Iterable[int], tell: Callable[[], bytes], hear: Callable[[int, bytes], None]
    ) -> None:
        """``others``: the first ranks of the other hosts, as ``hear`` gets them. ``start`` once all hosts have one."""
        self._store = agreement.new_store()
        self._key, self._others = _key(agreement.rank), list(others)
        self._tell, self._hear, self._told = tell, hear, b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay between hosts", daemon=True)
        self._send()

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Tell the last words of this host."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(RuntimeError):
            self._send()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):
            while not self._over.wait(PERIOD):
                self._send()
                for first, told in zip(
                    self._others, self._store.multi_get([_key(each) for each in self._others]), strict=True
                ):
                    self._hear(first, told)

    def _send(self) -> None:
        told = self._tell()
        if told != self._told:
            self._store.set(self._key, told)
            self._told = told


def _key(first: int) -> str:
    return f"relay/{first}"
