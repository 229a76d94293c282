"""A heap across hosts under Triton's interpreter: far peers by ``put_signal`` alone, late, in any order.

What NVSHMEM and NCCL's GIN promise of a put with a signal, and nothing more: all of its data is there before its own
signal is. Puts of one rank overtake each other, a put's data arrives in pieces, and its source is read when it travels.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from autotune.heap import device
from autotune.heap.shared import SharedMemoryHeap

PIECES = 3
"""A put arrives in about so many parts."""

NEAR_DELAY = 0.005
"""Seconds by which a store to a near peer may be late: what is signalled before it is stored is then seen."""

PROTECTED = (("load", 1), ("store", 2), ("atomic_add", 2))
"""Device functions, and the place of the first of two ranks among their arguments."""

_open: list[FarHeap] = []


class FarHeap(SharedMemoryHeap):
    """Ranks 0 to ``per_host`` - 1 are on the first host, and so on. ``bases`` of far peers are 0."""

    def __init__(self, size: int, per_host: int, seed: int, delay: float = 0.03) -> None:
        """Collective over all ranks; ``size`` in bytes, ``delay`` the seconds that a put takes on average."""
        super().__init__(size)
        self.per_host, self.sent = per_host, 0
        """``sent``: bytes put so far."""
        self._draw, self._delay = random.Random(1000 * seed + self.rank), delay
        self._puts: list[threading.Thread] = []
        self._signals = threading.Lock()
        for peer in range(self.world_size):
            if not self.is_near(peer):
                self.bases[peer] = 0
        self._patches = contextlib.ExitStack()
        for place in (device, device.iris):
            for name, ranks in PROTECTED:
                original = getattr(place, name)
                setattr(place, name, self._within_host(original, name, ranks))
                self._patches.callback(setattr, place, name, original)
        _open.append(self)

    def is_near(self, peer: int) -> bool:
        return peer // self.per_host == self.rank // self.per_host

    def put(self, there: int, source: int, size: int, word: int, value: int, peer: int) -> None:
        """``put_signal`` of addresses in this process: on its way when it returns."""
        move = self._addresses[peer] - self._addresses[self.rank]
        pause = self._draw.expovariate(1 / self._delay) / PIECES
        pieces = list(range(0, size, max(1, size // PIECES)))
        self._draw.shuffle(pieces)

        def travel() -> None:
            for begin in pieces:
                time.sleep(pause)
                length = min(max(1, size // PIECES), size - begin)
                ctypes.memmove(there + move + begin, source + begin, length)
            with self._signals:
                ctypes.c_int64.from_address(word + move).value += value

        self.sent += size
        self._puts.append(threading.Thread(target=travel, daemon=True))
        self._puts[-1].start()

    @property
    def is_quiet(self) -> bool:
        """False if anything was put after the last ``quiet``, whether it is in place or not."""
        return not self._puts

    def quiet(self) -> None:
        while self._puts:
            self._puts.pop().join()

    def close(self) -> None:
        self.quiet()
        _open.remove(self)
        self._patches.close()
        super().close()

    def _within_host(self, function: Any, name: str, ranks: int) -> Callable[..., Any]:
        def called(*arguments: Any, mask: Any = None, **how: Any) -> Any:
            one, other = (_numbers(each) for each in arguments[ranks : ranks + 2])
            if np.any((one // self.per_host != other // self.per_host) & (True if mask is None else _numbers(mask))):
                raise RuntimeError(f"{name} to a rank on another host: only put_signal reaches it")
            if name == "store":
                time.sleep(self._draw.uniform(0, NEAR_DELAY))
            return function(*arguments, mask=mask, **how)

        return called


def _numbers(of: Any) -> Any:
    return of.handle.data if hasattr(of, "handle") else np.asarray(of)


def put_signal(there: Any, source: Any, size: Any, word: Any, value: Any, peer: Any) -> None:
    """In a kernel: copy ``size`` bytes, at least one, to ``peer``, then add ``value`` to its ``word``, int64.

    ``there`` and ``word`` are our own addresses of what is meant on the peer. A word has one sending rank; ``wait``
    polls it. Nobody overwrites ``source`` before ``quiet``.
    """
    numbers = [int(_numbers(each).item()) for each in (there, source, size, word, value, peer)]
    assert numbers[2] > 0
    _open[-1].put(*numbers)


def quiet() -> None:
    """In a kernel: wait until all that this rank has put is in place."""
    _open[-1].quiet()
