"""Shared by the workloads with a GEMM: operands from a caller, random inputs, a reference, baselines."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from autotune.config import Config
from autotune.dtypes import COMBINATIONS, FP8, SCALES
from autotune.errors import InvalidProblem
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.gemm.problem import GemmProblem, scale_shapes
from autotune.kernels.launching.contract import S
from autotune.kernels.launching.gemm import GemmTensors, SummedTensors, order_of
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, element_type
from autotune.problem import Problem
from autotune.task import Task
from autotune.workloads.comparison import distance, drawn, drawn_bias, drawn_deep, drawn_scales, with_zeros
from autotune.workloads.launched import DrawnOperation, LaunchedWorkload, Operands, with_rows
from autotune.workloads.tolerance import Error

FACTORS = (1.0, -1.0, 2.0, -2.0)
"""A is multiplied by one of these between calls back to back, on all ranks by the same: exact in every element type.
No two are equal, so all that ranks exchange, partial sums or A itself, is wrong in any call but its own. The first one
is for the operands as they were drawn."""

SCALE_FACTORS = (1.0, 4.0, 0.25, 0.0625)
"""A's scales are multiplied by these at the same time. No two products are equal either, whichever call's A and scales
they are of."""

NAMES = {dtype: name for name, dtype in OPERAND_DTYPES.items()}

LEAST_ROWS = 8
"""Rows are counted in eights, the least that matrix units multiply."""

G = TypeVar("G", bound=GemmProblem)


class GemmWorkload(LaunchedWorkload):
    """A subclass says how the sizes of A and B make a problem, which has ``gemm``: rows, columns, depth on a rank."""

    row_by_row = True

    def waste(self, config: Config, task: Task[Any]) -> float:
        """Waste of our GEMM's tiles, all rounds of which take as long as a full one. The library knows better tiles."""
        machine = task.machine
        if "block_m" not in config or machine.is_interpreter:
            return 1.0
        (rows, owners), (_, columns, _) = self.tiled(task.problem, config), task.problem.gemm
        block_m, block_n, parts = (int(config.get(name, 1)) for name in ("block_m", "block_n", "split_k"))
        programs: int = owners * math.ceil(rows / block_m) * math.ceil(columns / block_n) * parts
        done = math.ceil(programs / machine.compute_units) * machine.compute_units * block_m * block_n / parts
        return float(done / (owners * math.ceil(rows / LEAST_ROWS) * LEAST_ROWS * columns))

    def tiled(self, problem: Any, config: Config) -> tuple[int, int]:
        """Rows that tiles divide, and how often there are so many: tiles may have rows of one owner alone."""
        return problem.gemm[0], 1

    @abstractmethod
    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Mapping[str, Any]) -> dict[str, int]:
        """The problem's fields that come from two matrices."""

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Problem:
        """A, B and the bias may have any strides; B's depth and the bias fit the problem."""
        a, b, bias, scale_a, scale_b, *residual = operands
        dtype = operand_type(a, b, bias, self.out_dtype(operands, options))
        if a.dim() != 2 or b.dim() != 2:
            raise InvalidProblem(f"a is {list(a.shape)}, b {list(b.shape)}; both must be matrices")
        given = dict(zip(self.options, options, strict=True))
        kind: type[Any] = self.problem_type
        problem = kind(
            **self.sizes(world_size, a, b, given), **given, dtype=dtype, world_size=world_size,
            b_order=order_of(b), bias=bias is not None,
            scales=kind_of_scales(a, b, scale_a, scale_b),
            **({"residual": residual[0] is not None} if residual else {}),
        )  # fmt: skip
        _, columns, depth = problem.gemm
        if b.shape[0] != depth or (bias is not None and bias.shape != (columns,)):
            raise InvalidProblem(
                f"b is {list(b.shape)}, bias {None if bias is None else list(bias.shape)}; with a {list(a.shape)} on "
                f"{world_size} ranks, b [{depth}, {columns}] and bias [{columns}] expected ({problem})"
            )
        for tensor in residual:
            if tensor is not None:
                shape = self.out_shape(world_size, operands, options)
                demand_like("residual", tensor, shape, self.out_dtype(operands, options))
        made: Problem = problem
        return made

    def filled(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Operands | None:
        """A without rows, its scales, and what has the result's rows."""
        a, b, bias, scale_a, scale_b, *others = operands
        if a is None or a.dim() != 2 or a.shape[0] != 0:
            return None
        of_gemm = with_rows(a, world_size), b, bias, with_rows(scale_a, world_size), scale_b
        rows = self.out_shape(world_size, of_gemm, options)[0]
        return [*of_gemm, *(with_rows(each, rows) for each in others)]

    def out_dtype(self, operands: Operands, options: Sequence[Any]) -> torch.dtype:
        """The one that is asked for, else the default beside A's."""
        return result_type(operands[0].dtype, dict(zip(self.options, options, strict=True))["out_dtype"])

    def baselines(self, task: Task[Any]) -> dict[str, Config]:
        """The library's GEMM and its collective: eager, and as a CUDA graph where there are graphs."""
        return self.eager_and_graph({"bsp": Config({"mode": "bsp"})}, task)


def result_type(of_a: torch.dtype, asked: str = "auto") -> torch.dtype:
    """The result's element type beside A's: the one that is asked for, else the default; A's where no GEMM takes it."""
    found = COMBINATIONS.get(NAMES.get(of_a, ""))
    if found is None:
        return of_a
    return TORCH_DTYPES[found.results[0] if asked == "auto" else asked]


def demand_like(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise InvalidProblem unless a tensor is contiguous and of this form."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise InvalidProblem(
            f"{name} is {list(tensor.shape)} {tensor.dtype}, strides {tensor.stride()}; {list(shape)} {dtype}, "
            "contiguous, expected"
        )


def operand_type(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out: torch.dtype) -> str:
    """Our name of A's element type. Raises InvalidProblem where the others' do not go with it."""
    dtype = NAMES.get(a.dtype, "")
    if dtype in FP8:
        with_a = OPERAND_DTYPES[COMBINATIONS[dtype].b]
        if b.dtype != with_a:
            raise InvalidProblem(f"a is {a.dtype}, b is {b.dtype}; with such an a, b must be {with_a}")
    else:
        element_type({"a": a, "b": b}, TORCH_DTYPES)
    if bias is not None and bias.dtype != out:
        raise InvalidProblem(f"bias is {bias.dtype}; it must be of the result's type, {out}")
    return dtype


def kind_of_scales(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None) -> str:
    """The problem's word for scales of these shapes. Raises InvalidProblem where there is none."""
    if scale_a is None and scale_b is None:
        return "none"
    of_a, of_b = (a.shape[0], a.shape[1]), (b.shape[0], b.shape[1])
    shapes = {kind: scale_shapes(kind, of_a, of_b) for kind in SCALES[1:]}
    said = "; ".join(f"{kind}: {list(for_a)} and {list(for_b)}" for kind, (for_a, for_b) in shapes.items())
    got = " and ".join(_said(name, each) for name, each in (("scale_a", scale_a), ("scale_b", scale_b)))
    if scale_a is None or scale_b is None:
        raise InvalidProblem(f"{got}: give both scales, or none")
    if scale_a.dtype != torch.float32 or scale_b.dtype != torch.float32:
        raise InvalidProblem(f"{got}: scales must be {torch.float32}")
    found = tuple((1,) if each.dim() == 0 else tuple(each.shape) for each in (scale_a, scale_b))
    for kind, wanted in shapes.items():
        if found == wanted:
            if not scale_a.is_contiguous() or not scale_b.t().is_contiguous():
                raise InvalidProblem(
                    f"{got}: scale_a must be contiguous, and scale_b the transpose of a contiguous matrix, as b is"
                )
            return kind
    raise InvalidProblem(f"{got}: with a {list(a.shape)} and b {list(b.shape)} allowed: {said}")


def _said(name: str, scales: torch.Tensor | None) -> str:
    if scales is None:
        return f"{name} is None"
    return f"{name} is {list(scales.shape)} {scales.dtype}, strides {scales.stride()}"


class GemmOperation(DrawnOperation[G, GemmTensors, S]):
    """The tensors of one rank, and the config prepared last. A subclass draws the inputs and knows the parts.

    Its sets are A, and its scales, as they were drawn, times ``FACTORS`` and ``SCALE_FACTORS``.
    """

    count = len(FACTORS)
    _product: torch.Tensor
    """The reference without its bias, for A and its scales as they were drawn."""

    @abstractmethod
    def draw_operands(self, seed: int) -> torch.Tensor:
        """Fill A, B, their scales and the bias; the product that the kernels owe this rank, without the bias, in type
        ``wide``.
        """

    def refresh(self, seed: int) -> None:
        """Every rank draws what it needs of every rank's operands, so that the reference needs no communication."""
        self._product, self._number = self.draw_operands(seed), 0
        self.poison()

    @property
    def residual(self) -> torch.Tensor | None:
        """The tensor that is added to this rank's result, if there is one."""
        return self._tensors.residual if isinstance(self._tensors, SummedTensors) and self._problem.residual else None

    def put(self, number: int) -> None:
        a, scale_a = self._tensors.a, self._tensors.scale_a
        factor = FACTORS[number] / FACTORS[self._number]
        if scale_a is None:
            a.mul_(factor)  # exact: nothing becomes smaller than it was drawn
        else:
            a.copy_(a.to(torch.float16) * factor)  # fp8 has no arithmetic; exact in fp16
            scale_a.mul_(SCALE_FACTORS[number] / SCALE_FACTORS[self._number])
        self._number = number

    def draw_a(self, seed: int) -> torch.Tensor:
        """A like this rank's, the same on every rank for the same seed."""
        rows, depth = self._tensors.a.shape
        return drawn_deep((rows, depth), self._tensors.a.dtype, self._heap.device, seed)

    def draw_b(self, seed: int) -> torch.Tensor:
        """A random B of this rank's shape, some of whose columns are zero: then parts of a sum are, however few rows
        they have.
        """
        b = drawn(tuple(self._tensors.b.shape), torch.float32, self._heap.device, seed)
        return with_zeros(b.t(), seed).t().to(self._tensors.b.dtype)

    def draw_scales(self, like: torch.Tensor | None, seed: int) -> torch.Tensor | None:
        """Random scales of the form of ours, where there are any."""
        return None if like is None else drawn_scales(tuple(like.shape), self._heap.device, seed)

    def widened(self, matrix: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        return matrix.to(self.wide) if scales is None else dequantised(matrix, scales)

    def take(
        self, a: torch.Tensor, scale_a: torch.Tensor | None, b: torch.Tensor, scale_b: torch.Tensor | None
    ) -> None:
        tensors = self._tensors
        tensors.a.copy_(a)
        tensors.b.copy_(b)
        if tensors.scale_a is not None and tensors.scale_b is not None:
            assert scale_a is not None and scale_b is not None
            tensors.scale_a.copy_(scale_a)
            tensors.scale_b.copy_(scale_b)

    def draw_added(self, added: torch.Tensor | None, seed: int, depth: int) -> None:
        """Fill a bias or a residual, where there is one, as large as a product of that depth."""
        if added is not None:
            added.copy_(drawn_bias(tuple(added.shape), added.dtype, self._heap.device, seed, depth))

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        return distance(outputs[0], self.expected(number))

    def expected(self, number: int = 0) -> torch.Tensor:
        """The reference for a set, in type ``wide``."""
        factor = FACTORS[number] * (SCALE_FACTORS[number] if self._problem.scaled else 1.0)
        product = self._product if factor == 1.0 else self._product * factor
        for added in (self._tensors.bias, self.residual):
            if added is not None:
                product = product + added
        return product
