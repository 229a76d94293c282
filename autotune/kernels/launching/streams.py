"""Streams of a launcher that uses several, and their device: run on one, let one wait for others. On CPUs a stream is
None.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from autotune.heap.arena import SymmetricHeap


def side_stream(heap: SymmetricHeap, name: str) -> Any:
    """A stream beside the caller's, the same for all calls on a heap, which never overlap.

    So there are few: torch keeps 32 MiB for every one that ever saw a matmul.
    """
    if heap.device.type != "cuda":
        return None
    streams = _STREAMS.setdefault(heap, {})
    if name not in streams:
        streams[name] = torch.cuda.Stream(heap.device)
    return streams[name]


_STREAMS: weakref.WeakKeyDictionary[SymmetricHeap, dict[str, Any]] = weakref.WeakKeyDictionary()


def on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """While it lasts, work is enqueued on ``stream``."""
    return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()


def wait(waiting: Iterable[Any], for_these: Iterable[Any]) -> None:
    """Later work on each of ``waiting`` comes after all earlier work on ``for_these``."""
    others = [other for other in for_these if other is not None]
    for stream in waiting:
        for other in others:
            stream.wait_stream(other)


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """While it lasts, ``device`` is this thread's current one: Triton launches there, and there torch looks for the
    current stream. A new thread's is the first GPU, whatever the program's rank.
    """
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return _AS_IT_IS  # torch's own manager would cost every call a microsecond
    return torch.cuda.device(device)


_AS_IT_IS = contextlib.nullcontext()


def capturing(device: torch.device) -> bool:
    """True while the current stream is captured into a CUDA graph."""
    with on_device(device):
        return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
