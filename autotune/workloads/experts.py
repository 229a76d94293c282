"""What the workloads of mixtures of experts share: drawn tokens with their routings, and the check of a caller's."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.launching.tensors import OPERAND_DTYPES
from autotune.kernels.moe.routing import Kind, Plan, drawn_routing, planned
from autotune.kernels.moe_dispatch.exchange import Scratch
from autotune.kernels.moe_dispatch.problem import DispatchedProblem
from autotune.machine import Machine
from autotune.workloads.comparison import drawn_deep, drawn_scales
from autotune.workloads.gemm import kind_of_scales, operand_type
from autotune.workloads.input_sets import InputSets, poison
from autotune.workloads.interface import Run
from autotune.workloads.launched import LaunchedOperation
from autotune.workloads.tolerance import Error

LIBRARY_WAYS = {
    "bsp": Config({"mode": "bsp", "exchange": "all_gather"}),
    "bsp counted": Config({"mode": "bsp", "exchange": "all_to_all"}),
}
"""All-gather, whose shapes are fixed, and the all-to-all for which the host reads counts."""

RIGHT, WRONG = Error(0.0, 0.0), Error(math.inf, math.inf)
"""Of what is the same to the bit, or wrong."""

P = TypeVar("P", bound=DispatchedProblem)
T = TypeVar("T")
S = TypeVar("S", bound=Scratch)

KINDS: tuple[Kind, ...] = ("one expert", "holes", "plain")
FACTORS = (2.0, -1.0, 1.0)
"""Of the tokens in each set: exact in every element type."""
SCALE_FACTORS = (4.0, 2.0, 1.0)
"""Of their scales, where they have any. A product of the two is right for one set alone, whichever sets' they are."""


def times(matrix: torch.Tensor, factor: float) -> torch.Tensor:
    """A matrix times a factor that is exact; fp8 has no arithmetic of its own."""
    return (matrix.to(torch.float16) * factor).to(matrix.dtype) if matrix.element_size() == 1 else matrix * factor


def chosen_rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a matrix, of whatever type."""
    return matrix.view(torch.uint8)[rows].view(matrix.dtype) if matrix.element_size() == 1 else matrix[rows]


def grouped_operands(a: torch.Tensor, b: torch.Tensor, scales: Sequence[torch.Tensor | None]) -> tuple[str, str]:
    """Our names of A's element type and of the kind of its and B's scales. Raises InvalidProblem where they do not go
    together. ``b`` [local experts, depth, columns].
    """
    dtype = operand_type(a, b, None, a.dtype)
    scale_a, scale_b = scales
    if scale_b is not None and (scale_b.dim() != 3 or scale_b.shape[0] != b.shape[0]):
        raise InvalidProblem(f"scale_b is {list(scale_b.shape)}: needed are those of each of {b.shape[0]} experts' B")
    if scale_b is not None and not scale_b.transpose(1, 2).is_contiguous():
        raise InvalidProblem(f"scale_b has strides {scale_b.stride()}: needed is the transpose of a contiguous tensor")
    return dtype, kind_of_scales(a, b[0], scale_a, None if scale_b is None else scale_b[0])


class DrawnTokens:
    """All ranks' tokens, times a factor in each of COUNT sets, and each set's own routing.

    A config is timed on the inputs that were put last: after calls back to back these are the last set, the plain one.
    """

    COUNT = len(KINDS)
    PLAIN = KINDS.index("plain")

    def __init__(self, problem: DispatchedProblem, heap: SymmetricHeap, seed: int) -> None:
        shape = (problem.tokens, problem.hidden)
        dtype = OPERAND_DTYPES[problem.dtype]
        self._every = torch.cat(
            [drawn_deep(shape, dtype, heap.device, seed * 1000 + rank) for rank in range(heap.world_size)]
        )
        self._mine = slice(heap.rank * problem.tokens, (heap.rank + 1) * problem.tokens)
        self._scales = None
        if problem.row_scales:
            shape = (problem.world_size * problem.tokens, problem.row_scales)
            self._scales = drawn_scales(shape, heap.device, seed * 1000 + 300)
        self.routings = [
            drawn_routing(problem, heap.device, seed * 1000 + 500 + number, kind) for number, kind in enumerate(KINDS)
        ]
        self._rank = heap.rank

    def put(
        self, number: int, x: torch.Tensor, ids: torch.Tensor, gates: torch.Tensor, scales: torch.Tensor | None = None
    ) -> None:
        """Enqueue what makes a set this rank's operands."""
        x.copy_(times(self._every[self._mine], FACTORS[number]))
        if scales is not None:
            assert self._scales is not None
            torch.mul(self._scales[self._mine], SCALE_FACTORS[number], out=scales)
        ids.copy_(self.routings[number].ids[self._rank])
        gates.copy_(self.routings[number].gates[self._rank])

    def sent(self, number: int, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens of a set by their numbers, source rank * tokens + token, and their scales, if they have any."""
        found = times(chosen_rows(self._every, places), FACTORS[number])
        return found, None if self._scales is None else self._scales[places] * SCALE_FACTORS[number]

    def tokens(self, number: int, places: torch.Tensor) -> torch.Tensor:
        """The same as numbers: of fp8 in fp32, times their scales."""
        found, scales = self.sent(number, places)
        return found if scales is None else dequantised(found, scales)


def default_sizes(machine: Machine, world_size: int) -> dict[str, Any]:
    """Of default problems: DeepSeek-V3's hidden size with 32 experts per rank; a toy under the interpreter."""
    if machine.is_interpreter:
        return {"tokens": 6, "hidden": 64, "experts": 2 * world_size, "top_k": 2, "world_size": world_size}
    return {"tokens": 128, "hidden": 7168, "experts": 32 * world_size, "top_k": 8, "world_size": world_size}


def is_transposed(name: str, a: torch.Tensor, b: torch.Tensor, sizes: tuple[str, str, str]) -> bool:
    """True if each local expert's B is the transpose of a contiguous matrix. Raises InvalidProblem unless A, ``name``,
    and B are contiguous otherwise. ``sizes``: the names of A's rows, its columns, and B's columns.
    """
    rows, depth, columns = sizes
    transposed = b.dim() == 3 and b.transpose(1, 2).is_contiguous() and not b.is_contiguous()
    if a.dim() != 2 or b.dim() != 3 or not a.is_contiguous() or not (b.is_contiguous() or transposed):
        raise InvalidProblem(
            f"{name} is {list(a.shape)}, strides {a.stride()}, b {list(b.shape)}, strides {b.stride()}: needed are "
            f"{name} [{rows}, {depth}], contiguous, and b [local experts, {depth}, {columns}], contiguous or each the "
            "transpose of a contiguous matrix"
        )
    return transposed


def check_experts(name: str, a: torch.Tensor, b: torch.Tensor, world_size: int, experts: int) -> None:
    """Raise InvalidProblem unless B [local experts, depth, columns] is of so many experts, as deep as A, ``name``."""
    if b.shape[0] * world_size != experts or b.shape[1] != a.shape[1]:
        raise InvalidProblem(
            f"b is {list(b.shape)}: with {name} {list(a.shape)} and {experts} experts on {world_size} ranks "
            f"[{experts / world_size:g}, {a.shape[1]}, columns] is needed"
        )


def check_routing(x: torch.Tensor, ids: torch.Tensor, gates: torch.Tensor) -> None:
    """Raise InvalidProblem unless ids and gates fit the tokens x [tokens, …]."""
    fits = ids.dim() == 2 and ids.shape[0] == x.shape[0] and gates.shape == ids.shape
    types = ids.dtype is torch.int32 and gates.dtype is torch.float32
    if not (fits and types and ids.is_contiguous() and gates.is_contiguous()):
        raise InvalidProblem(
            f"x is {list(x.shape)}, ids {list(ids.shape)} {ids.dtype}, gates {list(gates.shape)} {gates.dtype}: needed "
            "are ids and gates [tokens, top_k], int32 and float32, contiguous"
        )


class OfSets(Protocol):
    """An operation whose inputs are sets that were drawn together."""

    def put(self, number: int) -> None:
        """Enqueue what makes a set the inputs."""

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The distance of outputs from the reference for a set."""


class DrawnSets(InputSets):
    """The sets that an operation has drawn."""

    def __init__(self, operation: OfSets, count: int) -> None:
        self._operation, self.count = operation, count

    def put(self, number: int) -> None:
        self._operation.put(number)

    def error(self, number: int, outputs: Sequence[torch.Tensor]) -> Error:
        return self._operation.error_of(outputs, number)


class DispatchedOperation(LaunchedOperation[P, T, S], Generic[P, T, S]):
    """An operation that begins with a dispatch: a result by rows, and their plan."""

    def refresh(self, seed: int) -> None:
        """Every rank draws every rank's tokens and routing, so that the reference needs no communication."""
        self.drawn = DrawnTokens(self._problem, self._heap, seed)
        self.draw_weights(seed)
        self.put(DrawnTokens.PLAIN)
        for output in self.outputs():
            poison(output)
        self.poison()

    def draw_weights(self, seed: int) -> None:
        """Fill the operands that are no tokens."""

    def put(self, number: int) -> None:
        """Enqueue what makes one of the drawn sets the inputs."""
        tensors: Any = self._tensors
        self.drawn.put(number, tensors.x, tensors.ids, tensors.gates, getattr(tensors, "scale_x", None))
        self._number = number

    def inputs(self) -> Sequence[torch.Tensor]:
        operands = (getattr(self._tensors, name) for name in self._kernels.operands)
        return [each for each in operands if each is not None]

    def outputs(self) -> Sequence[torch.Tensor]:
        return [getattr(self._tensors, name) for name in self._kernels.results]

    def input_sets(self, seed: int) -> InputSets:
        """The same tokens times a factor, under another routing each."""
        self.refresh(seed)
        return DrawnSets(self, DrawnTokens.COUNT)

    def error(self) -> Error:
        return self.error_of(self.outputs(), self._number)

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """Infinite unless the plan is right to the bit; else that of the rows that exist."""
        result, offsets, pairs, gates, *more = outputs
        plan = planned(self._problem, self.drawn.routings[number], self._heap.rank)
        if not torch.equal(offsets, plan.offsets):
            return WRONG
        end = int(offsets[-1])
        if not (torch.equal(pairs[:end], plan.pairs[:end]) and torch.equal(gates[:end], plan.gates[:end])):
            return WRONG
        if not end:
            return RIGHT
        places = plan.pairs[:end] // self._problem.top_k
        return self.error_of_rows([each[:end] for each in (result, *more)], number, places, plan)

    @abstractmethod
    def error_of_rows(self, rows: Sequence[torch.Tensor], number: int, places: torch.Tensor, plan: Plan) -> Error:
        """That of the rows of each result but the plan, made from the tokens at these places of a set."""

    def exchange(self) -> Run:
        """The library's all-to-all of as many tokens as go to a rank on average, as many to each."""
        problem, x = self._problem, self._tensors.x  # type: ignore[attr-defined]
        rows = max(1, round(problem.tokens * problem.reached))
        sent = torch.zeros(problem.world_size * rows, problem.token_bytes, dtype=torch.uint8, device=x.device)
        arrived = torch.zeros_like(sent)

        def run() -> None:
            torch.distributed.all_to_all_single(arrived, sent)

        return run
