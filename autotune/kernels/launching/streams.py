"""Streams of a launcher that uses several: run on one, let one wait for others. On CPUs a stream is None."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch


def on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """What is enqueued inside goes to ``stream``."""
    return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()


def wait(waiting: Iterable[Any], for_these: Iterable[Any]) -> None:
    """What is enqueued on each of ``waiting`` from now on comes after all that is on ``for_these`` already."""
    others = [other for other in for_these if other is not None]
    for stream in waiting:
        for other in others:
            stream.wait_stream(other)
