"""Sets of inputs for calls back to back: put in place on the stream, without a word from host or peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from autotune.workloads.tolerance import Error

SETS = 3
"""Sets that calls take in turn: data of the call before, of the one before that, or of the next, is then wrong data."""


class InputSets(Protocol):
    """``count`` sets of inputs of an operation that differ in everything its ranks exchange; the same on all ranks. A
    config is timed with the last.
    """

    @property
    def count(self) -> int: ...

    def put(self, number: int) -> None:
        """Enqueue on the current stream what makes set ``number`` the operation's inputs."""

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The distance of ``outputs`` from the reference for set ``number``. Every rank calls it, none is running."""


class Refreshed:
    """Keeps ``refresh``'s draws from several seeds: for any operation, at the price of memory and references."""

    count = SETS

    def __init__(self, operation: Any, seed: int) -> None:
        """Draws the sets of an ``Operation``; collective."""
        self._operation = operation
        # Far apart, for an evaluation's own seeds follow each other.
        self._seeds = [seed + number * 1_000_003 for number in range(self.count)]
        self._kept = []
        for each in self._seeds:
            operation.refresh(each)
            self._kept.append([tensor.clone() for tensor in operation.inputs()])

    def put(self, number: int) -> None:
        for tensor, kept in zip(self._operation.inputs(), self._kept[number], strict=True):
            tensor.copy_(kept)

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """Draw the set once more for its reference, and let the operation compare."""
        self._operation.refresh(self._seeds[number])
        for tensor, kept in zip(self._operation.outputs(), outputs, strict=True):
            tensor.copy_(kept)
        error: Error = self._operation.error()
        return error


def poison(tensor: torch.Tensor) -> None:
    """Fill with what no right result is: NaN, or the least number where there is no NaN."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).min)
