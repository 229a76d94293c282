"""Sets of inputs for calls back to back: put in place on the stream, without a word from host or peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch

from autotune.workloads.tolerance import Error

SETS = 3
"""Sets that calls take in turn: data of the call before, of the one before that, or of the next, is then wrong data."""


class InputSets(ABC):
    """``count`` sets of inputs of an operation that differ in everything its ranks exchange; the same on all ranks."""

    count: int

    @abstractmethod
    def put(self, number: int) -> None:
        """Enqueue on the current stream what makes set ``number`` the operation's inputs."""

    @abstractmethod
    def error(self, number: int, outputs: Sequence[torch.Tensor]) -> Error:
        """The distance of ``outputs`` from the reference for set ``number``. Every rank calls it, none is running."""


class Drawing(Protocol):
    """An operation's methods for its inputs, see ``Operation``."""

    def refresh(self, seed: int) -> None:
        pass

    def inputs(self) -> Sequence[torch.Tensor]:
        pass

    def outputs(self) -> Sequence[torch.Tensor]:
        pass

    def error(self) -> Error:
        """Compare the outputs with the reference."""


class DrawnTogether(Protocol):
    """An operation whose ``refresh`` draws all its sets."""

    def put(self, number: int) -> None:
        """Enqueue what makes a set the inputs."""

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The distance of outputs from the reference for a set."""


class DrawnSets(InputSets):
    """The sets that an operation has drawn together."""

    def __init__(self, operation: DrawnTogether, count: int) -> None:
        self._operation, self.count = operation, count

    def put(self, number: int) -> None:
        self._operation.put(number)

    def error(self, number: int, outputs: Sequence[torch.Tensor]) -> Error:
        return self._operation.error_of(outputs, number)


class Refreshed(InputSets):
    """Keeps ``refresh``'s draws from several seeds: for any operation, at the price of memory and references."""

    count = SETS

    def __init__(self, operation: Drawing, seed: int) -> None:
        """Draws the sets; collective."""
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

    def error(self, number: int, outputs: Sequence[torch.Tensor]) -> Error:
        """Draw the set once more for its reference, and let the operation compare."""
        self._operation.refresh(self._seeds[number])
        for tensor, kept in zip(self._operation.outputs(), outputs, strict=True):
            tensor.copy_(kept)
        return self._operation.error()


def poison(tensor: torch.Tensor) -> None:
    """Fill with what no right result is: NaN, or the least number where there is no NaN."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).min)
