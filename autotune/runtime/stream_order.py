"""The calls of a process follow each other on its GPU, whichever contexts and streams they are on.

Two calls at once could each hold the multiprocessors that the other one's peers wait for, and calls that replay share
a pool of temporaries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVarTuple

import torch
from triton.runtime import driver

from autotune.kernels.launching.streams import on_device

Arguments = TypeVarTuple("Arguments")


class StreamOrder:
    """The stream of the call before, on this process's device."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stream: torch.cuda.Stream | None = None
        self._raw_stream: int | None = None

    def take(self, device: torch.device, call: Callable[[*Arguments], object], *arguments: *Arguments) -> None:
        """Make a call on ``device``, its stream after the call before; other calls are kept out as long as it lasts."""
        with self._lock, on_device(device):
            self._follow(device)
            call(*arguments)

    def _follow(self, device: torch.device) -> None:
        # Triton's query takes 0.2 µs, torch's several, as it makes an object; nearly always the stream is the last one.
        raw = driver.active.get_current_stream(device.index)
        if raw == self._raw_stream or torch.cuda.is_current_stream_capturing():
            return  # what is captured runs when it is replayed: then its order is the caller's
        stream = torch.cuda.current_stream(device)
        if self._stream is not None:
            stream.wait_stream(self._stream)
        self._stream, self._raw_stream = stream, raw

    def forget(self) -> None:
        """Keep no stream of a program that has closed its last context."""
        with self._lock:
            self._stream = self._raw_stream = None


STREAM_ORDER = StreamOrder()
