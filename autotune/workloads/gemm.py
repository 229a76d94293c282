"""Shared by the workloads with a GEMM: operands from a caller, random inputs, a reference, baselines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.launching.contract import P, S
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.tensors import TORCH_DTYPES, element_type
from autotune.machine import Machine
from autotune.problem import Problem
from autotune.workloads.comparison import distance, drawn, drawn_bias, drawn_deep
from autotune.workloads.input_sets import InputSets, poison
from autotune.workloads.launched import LaunchedOperation, LaunchedWorkload, Operands
from autotune.workloads.roofline import gemm_latency
from autotune.workloads.tolerance import Error

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


class GemmWorkload(LaunchedWorkload):
    """A subclass says how the sizes of A and B make a problem, which has ``gemm``: rows, columns, depth on a rank."""

    @abstractmethod
    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Mapping[str, Any]) -> dict[str, int]:
        """The problem's fields that come from two matrices."""

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Problem:
        """A is contiguous, B too or the transpose of such a matrix; B's depth and the bias fit the problem."""
        a, b, bias = operands
        assert a is not None and b is not None
        dtype = element_type({"a": a, "b": b, "bias": bias}, TORCH_DTYPES)
        _check_storage(a, b)
        given = dict(zip(self.options, options, strict=True))
        kind: type[Any] = self.problem_type
        problem = kind(
            **self.sizes(world_size, a, b, given), **given, dtype=dtype, world_size=world_size,
            b_order="kn" if b.is_contiguous() else "nk", bias=bias is not None,
        )  # fmt: skip
        _, columns, depth = problem.gemm
        if b.shape[0] != depth or (bias is not None and bias.shape != (columns,)):
            raise InvalidProblem(
                f"b is {list(b.shape)}, bias {None if bias is None else list(bias.shape)}; with a {list(a.shape)} on "
                f"{world_size} ranks, b [{depth}, {columns}] and bias [{columns}] are needed ({problem})"
            )
        made: Problem = problem
        return made

    def baselines(self, problem: Any, machine: Machine) -> dict[str, Config]:
        """The library's GEMM and its collective: eager, and as a CUDA graph where there are graphs."""
        both = {
            "bsp eager": Config({"mode": "bsp", "launch": "eager"}),
            "bsp graph": Config({"mode": "bsp", "launch": "graph"}),
        }
        return {name: c for name, c in both.items() if self.space.violation(c, problem, machine) is None}

    def predict(self, problem: Any, config: Config, machine: Machine) -> float | None:
        return gemm_latency(problem, self.kernels.knobs.of(config), machine)


def _check_storage(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != 2 or b.dim() != 2 or not a.is_contiguous():
        raise InvalidProblem(
            f"a {list(a.shape)}, strides {a.stride()}, and b {list(b.shape)} must be matrices, and a contiguous"
        )
    if not b.is_contiguous() and not b.t().is_contiguous():
        raise InvalidProblem(
            f"b has strides {b.stride()}: it must be contiguous, or the transpose of a contiguous matrix"
        )


class GemmOperation(LaunchedOperation[P, GemmTensors, S]):
    """The tensors of one rank, and the config prepared last. A subclass draws the inputs and knows the parts."""

    _product: torch.Tensor | None = None
    """The reference without its bias, for A as it was drawn."""
    _factor = 1.0
    """The factor by which A has been multiplied since."""

    @abstractmethod
    def draw_operands(self, seed: int) -> torch.Tensor:
        """Fill A, B and the bias; the product that the kernels owe this rank, without the bias, in type ``wide``."""

    def refresh(self, seed: int) -> None:
        """Every rank draws what it needs of every rank's operands, so that the reference needs no communication."""
        self._product, self._factor = self.draw_operands(seed), 1.0
        poison(self._tensors.c)
        self.poison()

    def inputs(self) -> Sequence[torch.Tensor]:
        tensors = self._tensors
        return [tensor for tensor in (tensors.a, tensors.b, tensors.bias) if tensor is not None]

    def outputs(self) -> Sequence[torch.Tensor]:
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
        rows, depth = self._tensors.a.shape
        return drawn_deep((rows, depth), self._tensors.a.dtype, self._heap.device, seed)

    def draw_b(self, seed: int) -> torch.Tensor:
        """A random B of this rank's shape."""
        return drawn(tuple(self._tensors.b.shape), self._tensors.b.dtype, self._heap.device, seed)

    def draw_bias(self, seed: int, depth: int) -> None:
        """Fill the bias, where there is one, of a product of that depth."""
        bias = self._tensors.bias
        if bias is not None:
            bias.copy_(drawn_bias(tuple(bias.shape), bias.dtype, self._heap.device, seed, depth))

    def error(self) -> Error:
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

    def __init__(self, operation: GemmOperation[Any, Any]) -> None:
        self._operation = operation

    def put(self, number: int) -> None:
        self._operation.multiply_a(FACTORS[number])

    def error(self, number: int, outputs: Sequence[torch.Tensor]) -> Error:
        return self._operation.error_of(outputs[0], FACTORS[number])
