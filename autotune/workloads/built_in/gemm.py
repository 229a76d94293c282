"""What the workloads with a GEMM have in common on a rank: a launcher on operands, random inputs, a distance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.machine import Machine
from autotune.workloads.comparison import distance, drawn, drawn_bias, drawn_deep
from autotune.workloads.input_sets import InputSets, poison
from autotune.workloads.scratch import ScratchOperation
from autotune.workloads.workload import Error, Run

FACTORS = (1.0, -1.0, 2.0, -2.0)
"""A is multiplied by one of these between calls back to back, on all ranks by the same: exact in every element type.
No two are equal, so all that ranks exchange, partial sums or A itself, is wrong in any call but its own."""

OF_A_LIBRARY = 3.0
"""Roundings that a library's GEMM may have beside the result's: it may split K and add up in the result's type."""


def ring(world_size: int) -> float:
    """Roundings of a library's GEMM and then its reduction, which may round all parts and each sum of them, hop by hop.

    A part has 1 / world_size of the result's variance, the sum of j parts j times that.
    """
    return 1 + (world_size + 1) / 2 + OF_A_LIBRARY


class GemmOperation(ScratchOperation):
    """The tensors of one rank, and the config prepared last. A subclass draws the inputs and knows the parts."""

    launcher: ClassVar[Any]
    """The module with ``share_scratch`` and ``bind``."""

    def __init__(self, problem: Any, tensors: Any, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """``tensors`` has ``a``, ``b``, ``c`` and maybe ``bias``; inputs are undefined until ``refresh``."""
        self._problem, self._tensors = problem, tensors
        self._machine, self._spin_limit = machine, spin_limit
        self._product: torch.Tensor | None = None
        """The reference without its bias, for A as it was drawn."""
        self._factor = 1.0
        """What A has been multiplied by since."""
        super().__init__(heap)

    @abstractmethod
    def draw_operands(self, seed: int) -> torch.Tensor:
        """Fill A, B and the bias; the product that the kernels owe this rank, without the bias, in type ``wide``."""

    @abstractmethod
    def poison_scratch(self) -> None:
        """Fill what the kernels of the config prepared last write to, the counters apart, with NaN."""

    def share(self, config: Config) -> Any:
        """Counters and inboxes."""
        return self.launcher.share_scratch(self._problem, config, self._machine, self._heap)

    def bind(self, config: Config) -> Run:
        """On this rank's tensors."""
        run: Run = self.launcher.bind(
            self._problem, config, self._machine, self._tensors, self.scratch, self._heap, self._spin_limit
        )
        return run

    def refresh(self, seed: int) -> None:
        """Every rank draws what it needs of every rank's operands, so that the reference needs no communication."""
        self._product, self._factor = self.draw_operands(seed), 1.0
        poison(self._tensors.c)
        if self.scratch is not None:
            self.poison_scratch()

    def inputs(self) -> Sequence[torch.Tensor]:
        """A, B and the bias."""
        tensors = self._tensors
        return [tensor for tensor in (tensors.a, tensors.b, tensors.bias) if tensor is not None]

    def outputs(self) -> Sequence[torch.Tensor]:
        """C."""
        return [self._tensors.c]

    def input_sets(self, seed: int) -> InputSets:
        """One set, and its multiples: one reference serves all."""
        self.refresh(seed)
        return _Multiples(self)

    def multiply_a(self, factor: float) -> None:
        """Enqueue what makes A ``factor`` times what was drawn."""
        self._tensors.a.mul_(factor / self._factor)  # exact: nothing becomes smaller than it was drawn
        self._factor = factor

    @property
    def wide(self) -> torch.dtype:
        """The type of the reference: fp32, or fp64 for fp32."""
        return torch.float64 if self._problem.dtype == "fp32" else torch.float32

    def draw_a(self, seed: int) -> torch.Tensor:
        """A like this rank's, the same on every rank for the same seed."""
        return drawn_deep(tuple(self._tensors.a.shape), self._tensors.a.dtype, self._heap.device, seed)

    def draw_b(self, seed: int) -> torch.Tensor:
        """A B like this rank's, likewise."""
        return drawn(tuple(self._tensors.b.shape), self._tensors.b.dtype, self._heap.device, seed)

    def draw_bias(self, seed: int) -> None:
        """Fill the bias, where there is one."""
        bias = self._tensors.bias
        if bias is not None:
            bias.copy_(drawn_bias(tuple(bias.shape), bias.dtype, self._heap.device, seed, self._problem.k))

    def error(self) -> Error:
        """Distance of C from the reference."""
        return self.error_of(self._tensors.c, self._factor)

    def error_of(self, c: torch.Tensor, factor: float) -> Error:
        """Distance of a C from the reference for A times ``factor``."""
        return distance(c, self.expected(factor))

    def expected(self, factor: float = 1.0) -> torch.Tensor:
        """The reference for A times ``factor``, in type ``wide``."""
        assert self._product is not None, "refresh comes first"
        product = self._product if factor == 1.0 else self._product * factor
        return product if self._tensors.bias is None else product + self._tensors.bias


class _Multiples(InputSets):
    """A as it was drawn, times each of ``FACTORS``."""

    count = len(FACTORS)

    def __init__(self, operation: GemmOperation) -> None:
        self._operation = operation

    def put(self, number: int) -> None:
        self._operation.multiply_a(FACTORS[number])

    def error(self, number: int, outputs: Sequence[torch.Tensor]) -> Error:
        return self._operation.error_of(outputs[0], FACTORS[number])
