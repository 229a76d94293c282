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
from autotune.kernels.launching.tensors import OPERAND_DTYPES
from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import Kind, Plan, drawn_routing, planned
from autotune.kernels.moe_dispatch.exchange import Scratch
from autotune.kernels.moe_dispatch.problem import DispatchedProblem
from autotune.workloads.comparison import drawn_deep
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

KINDS: tuple[Kind, ...] = ("one expert", "holes", "plain")
FACTORS = (2.0, -1.0, 1.0)
"""Of the tokens in each set: exact in every element type."""


class DrawnTokens:
    """All ranks' tokens, times a factor in each of COUNT sets, and each set's own routing.

    A config is timed on the inputs that were put last: after calls back to back these are the last set, the plain one.
    """

    COUNT = len(KINDS)
    PLAIN = KINDS.index("plain")

    def __init__(self, problem: ExpertsProblem, heap: SymmetricHeap, seed: int) -> None:
        shape = (problem.tokens, problem.hidden)
        dtype = OPERAND_DTYPES[problem.dtype]
        self._every = torch.cat(
            [drawn_deep(shape, dtype, heap.device, seed * 1000 + rank) for rank in range(heap.world_size)]
        )
        self._own = self._every[heap.rank * problem.tokens :][: problem.tokens]
        self.routings = [
            drawn_routing(problem, heap.device, seed * 1000 + 500 + number, kind) for number, kind in enumerate(KINDS)
        ]
        self._rank = heap.rank

    def put(self, number: int, x: torch.Tensor, ids: torch.Tensor, gates: torch.Tensor) -> None:
        """Enqueue what makes a set this rank's operands."""
        torch.mul(self._own, FACTORS[number], out=x)
        ids.copy_(self.routings[number].ids[self._rank])
        gates.copy_(self.routings[number].gates[self._rank])

    def tokens(self, number: int, places: torch.Tensor) -> torch.Tensor:
        """Tokens of a set by their numbers, source rank * tokens + token."""
        return self._every[places] * FACTORS[number]


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


class DispatchedOperation(LaunchedOperation[P, T, Scratch], Generic[P, T]):
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
        self.drawn.put(number, tensors.x, tensors.ids, tensors.gates)
        self._number = number

    def inputs(self) -> Sequence[torch.Tensor]:
        return [getattr(self._tensors, name) for name in self._kernels.operands]

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
        result, offsets, pairs, gates = outputs
        plan = planned(self._problem, self.drawn.routings[number], self._heap.rank)
        if not torch.equal(offsets, plan.offsets):
            return WRONG
        end = int(offsets[-1])
        if not (torch.equal(pairs[:end], plan.pairs[:end]) and torch.equal(gates[:end], plan.gates[:end])):
            return WRONG
        tokens = self.drawn.tokens(number, plan.pairs[:end] // self._problem.top_k)
        return self.error_of_rows(result[:end], tokens, plan) if end else RIGHT

    @abstractmethod
    def error_of_rows(self, rows: torch.Tensor, tokens: torch.Tensor, plan: Plan) -> Error:
        """That of the result's rows, of which each is made from its token."""

    def exchange(self) -> Run:
        """The library's all-to-all of as many tokens as go to a rank on average, as many to each."""
        problem, x = self._problem, self._tensors.x  # type: ignore[attr-defined]
        rows = max(1, round(problem.tokens * problem.reached))
        sent = torch.zeros(problem.world_size * rows, problem.hidden, dtype=x.dtype, device=x.device)
        arrived = torch.zeros_like(sent)

        def run() -> None:
            torch.distributed.all_to_all_single(arrived.view(torch.uint8), sent.view(torch.uint8))

        return run
