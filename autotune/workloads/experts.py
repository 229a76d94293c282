"""The common part of mixtures of experts: drawn tokens with their routings, default problems, baselines."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.launching.contract import S, T
from autotune.kernels.launching.tensors import OPERAND_DTYPES
from autotune.kernels.moe.problem import ExpertsProblem, GroupedProblem
from autotune.kernels.moe.routing import Kind, Routing, drawn_routing, typical_routing
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads.comparison import drawn_scales
from autotune.workloads.interface import Run
from autotune.workloads.launched import DrawnOperation, LaunchedWorkload
from autotune.workloads.rows import Batch, gathered

E = TypeVar("E", bound=ExpertsProblem)

KINDS: tuple[Kind, ...] = ("one expert", "holes", "plain")
"""The routing of each set."""
PLAIN = KINDS.index("plain")
FACTORS = (2.0, -1.0, 1.0)
"""Factor of the tokens in each set: exact in every element type."""
SCALE_FACTORS = (4.0, 2.0, 1.0)
"""Factor of their scales, if any. A product of the two is right for one set alone, whichever sets' they are."""

Draw = Callable[[tuple[int, int], torch.dtype, torch.device, int], torch.Tensor]


def times(matrix: torch.Tensor, factor: float) -> torch.Tensor:
    """A matrix times a factor that is exact; fp8 has no arithmetic of its own."""
    return (matrix.to(torch.float16) * factor).to(matrix.dtype) if matrix.element_size() == 1 else matrix * factor


def chosen_rows(matrix: torch.Tensor, rows: torch.Tensor | slice) -> torch.Tensor:
    """Rows of a matrix, of whatever type."""
    return matrix.view(torch.uint8)[rows].view(matrix.dtype) if matrix.element_size() == 1 else matrix[rows]


def source_of(rank: int, first: int, world_size: int) -> int:
    """The rank whose tokens a rank gets in a smaller batch: its own, or with ``first`` above 0 the next one's."""
    return (rank + (first > 0)) % world_size


class DrawnVectors:
    """All ranks' vectors, one of each token, and in each set a routing of its own.

    Every rank draws every rank's, so that the reference needs no communication.
    """

    def __init__(self, problem: ExpertsProblem, heap: SymmetricHeap, seed: int, width: int, draw: Draw) -> None:
        shape, dtype, device = (problem.tokens, width), OPERAND_DTYPES[problem.dtype], heap.device
        self._every = torch.cat([draw(shape, dtype, device, seed * 1000 + rank) for rank in range(heap.world_size)])
        self._scales = None
        if problem.row_scales:
            of_all = (heap.world_size * problem.tokens, problem.row_scales)
            self._scales = drawn_scales(of_all, device, seed * 1000 + 300)
        seeds = (seed * 1000 + 500 + number for number in range(len(KINDS)))
        self.routings = [
            typical_routing(problem, device, each) if kind == "plain" else drawn_routing(problem, device, each, kind)
            for each, kind in zip(seeds, KINDS, strict=True)
        ]
        self._problem, self._rank = problem, heap.rank
        self._mine = slice(heap.rank * problem.tokens, (heap.rank + 1) * problem.tokens)

    def put(self, number: int, rows: torch.Tensor, tensors: Any) -> None:
        """Enqueue what makes a set this rank's operands, of which ``rows`` is the first."""
        raise NotImplementedError

    def part(self, problem: ExpertsProblem, first: int) -> Self:
        """These draws for fewer tokens a rank: from ``first`` on, rank r those of ``source_of(r)``."""
        part, world, count = copy.copy(self), problem.world_size, problem.tokens
        sources = torch.tensor([source_of(rank, first, world) for rank in range(world)])
        tokens = first + torch.arange(count)
        places = (sources[:, None] * self._problem.tokens + tokens).flatten().to(self._every.device)
        part._every = chosen_rows(self._every, places)
        part._scales = None if self._scales is None else self._scales[places]
        part.routings = [
            Routing(*(each[sources.to(each.device)][:, first : first + count] for each in (old.ids, old.gates)))
            for old in self.routings
        ]
        part._problem, part._mine = problem, slice(self._rank * count, (self._rank + 1) * count)
        return part

    def sent(self, number: int, places: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Vectors of a set by their tokens' numbers, source rank * tokens + token, and their scales, if any."""
        found = times(chosen_rows(self._every, places), FACTORS[number])
        return found, None if self._scales is None else self._scales[places] * SCALE_FACTORS[number]

    def numbers(self, number: int, places: torch.Tensor | slice) -> torch.Tensor:
        """``sent`` as numbers: fp8 in fp32, times its scales."""
        found, scales = self.sent(number, places)
        return found if scales is None else dequantised(found, scales)


class ExpertsOperation(DrawnOperation[E, T, S], Generic[E, T, S]):
    """An operation on tokens that were drawn with their routings."""

    count = len(KINDS)
    drawn: DrawnVectors

    @abstractmethod
    def draw(self, seed: int) -> None:
        """Draw every set, and fill the operands that are the same in all."""

    def put(self, number: int) -> None:
        self.drawn.put(number, self.inputs()[0], self._tensors)
        self._number = number

    def refresh(self, seed: int) -> None:
        self.draw(seed)
        self.put(PLAIN)
        self.poison()

    def batch(self) -> Batch:
        return replace(super().batch(), drawn=self.drawn)

    def take_rows(self, whole: Batch, first: int) -> None:
        """Later tokens are given to the next rank, too; ``put`` makes all that depends on tokens."""
        super().take_rows(whole, first)
        self.drawn = whole.drawn.part(self._problem, first)
        self.put(PLAIN)

    def _of_batch(self, whole: Batch, name: str, like: torch.Tensor, first: int) -> torch.Tensor:
        """A result's rows of the tokens that ``DrawnVectors.part`` gives this rank."""
        if whole.tensors[name].shape == like.shape:
            return whole.tensors[name]
        if name not in self._kernels.results:
            return like
        source = source_of(self._heap.rank, first, self._heap.world_size)
        return gathered(whole.tensors[name], self._heap)[source * whole.problem.batch_rows + first :][: len(like)]

    def exchange(self) -> Run:
        """The library's all-to-all of as many tokens, or sums, as go to a rank on average, as many to each."""
        problem = self._problem
        rows = max(1, round(problem.tokens * problem.reached))
        shape = (problem.world_size * rows, problem.token_bytes)
        sent, arrived = (torch.zeros(shape, dtype=torch.uint8, device=self._heap.device) for _ in range(2))

        def run() -> None:
            torch.distributed.all_to_all_single(arrived, sent)

        return run


class ExpertsWorkload(LaunchedWorkload):
    row_by_row = True

    exchange: ClassVar[str]
    """The library's collective of fixed shapes."""

    def default_problem(self, machine: Machine, world_size: int) -> Any:
        """DeepSeek-V3's sizes with 32 experts per rank; a toy under the interpreter."""
        toy = machine.is_interpreter
        sizes: dict[str, Any] = {"tokens": 6, "hidden": 64, "experts": 2, "top_k": 2, "width": 32}
        if not toy:
            sizes = {"tokens": 128, "hidden": 7168, "experts": 32, "top_k": 8, "width": 2048}
        sizes["experts"] *= world_size
        if not issubclass(self.problem_type, GroupedProblem):
            del sizes["width"]
        return self.problem_type(**sizes, world_size=world_size)

    def baselines(self, task: Task[Any]) -> dict[str, Config]:
        """The library's way by fixed shapes, and by an all-to-all for which the host reads counts."""
        ways = {"bsp": self.exchange, "bsp counted": "all_to_all"}
        configs = {name: Config({"mode": "bsp", "exchange": exchange}) for name, exchange in ways.items()}
        return self.eager_and_graph(configs, task)
