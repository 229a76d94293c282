"""Workloads that have ``Kernels``, and what follows from these: on a rank, offline, for an operator."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.contract import Kernels, P, S, Setup, T
from autotune.kernels.launching.knobs import LadderKnobs
from autotune.kernels.launching.plan import Compiled, compile_all
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.task import Task
from autotune.workloads.input_sets import InputSets, poison
from autotune.workloads.interface import Operation, Run, Workload
from autotune.workloads.rows import Batch, unlike
from autotune.workloads.tolerance import Error

SPARE_BYTES = 1 << 20
"""Spare heap bytes beside the scratch: the stopwatch's counters, and alignment."""

CAPTURED = (
    "launch=graph times a graph of the library's collectives; an operator makes these calls one by one, unless its "
    "caller captures them (regime graph)"
)

Operands = Sequence[Any]
"""The tensors of a call in their order, None for one that is left out."""

OutForm = tuple[tuple[int, ...], torch.dtype]
"""Shape, whose dimensions may be symbolic, and element type of a result."""


class LaunchedWorkload(Workload):
    """A workload with ``kernels``: they compile it, and bound its heap; ``Operator`` makes a function of it.

    For that it says which fields of its problem a caller gives, and how the others follow from the tensors.
    """

    kernels: ClassVar[Kernels[Any, Any, Any, Any]]
    operation_type: ClassVar[type[LaunchedOperation[Any, Any, Any]]]
    options: ClassVar[tuple[str, ...]] = ()
    """Fields of the problem that an operator's caller gives beside the tensors, in their order."""
    row_by_row: ClassVar[bool] = False
    """True if a call may have no rows: then its results have none, and nothing runs."""

    def operation(self, task: Task[Any], heap: SymmetricHeap, spin_limit: int) -> LaunchedOperation[Any, Any, Any]:
        return self.operation_type(self.kernels_of(task.problem), task, heap, spin_limit)

    def kernels_of(self, problem: Any) -> Kernels[Any, Any, Any, Any]:
        """The ``kernels``, or others where the problem has more operands or results."""
        return self.kernels

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Problem:
        """The problem that a call is an instance of. Raises InvalidProblem where shapes, strides, types do not fit."""
        raise NotImplementedError(f"{self.name} has no operator")

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        """The result's shape, of operands that fit each other; dimensions may be symbolic."""
        raise NotImplementedError(f"{self.name} has no operator")

    def out_dtype(self, operands: Operands, options: Sequence[Any]) -> torch.dtype:
        """The result's element type, of operands that fit each other: by default the first one's."""
        dtype: torch.dtype = operands[0].dtype
        return dtype

    def out_forms(self, world_size: int, operands: Operands, options: Sequence[Any]) -> list[OutForm]:
        """Shape and element type of each of the kernels' ``results``; by default all have the same."""
        form = self.out_shape(world_size, operands, options), self.out_dtype(operands, options)
        return [form] * len(self.kernels.results)

    def eager_and_graph(self, ways: Mapping[str, Config], task: Task[Any]) -> dict[str, Config]:
        """Baselines: each of the library's ways called eagerly, and as a CUDA graph where there are graphs."""
        found = {f"{name} {how}": way.replace(launch=how) for name, way in ways.items() for how in ("eager", "graph")}
        return {name: config for name, config in found.items() if self.space.violation(config, task) is None}

    def unlike_measured(self, config: Config, regime: Regime) -> str | None:
        """A graph of a collective is bound to the addresses of its operands, so operators have none of their own."""
        if regime is Regime.GRAPH or config.get("launch") != "graph":
            return None
        return CAPTURED if self.kernels.has_collective(self.kernels.knobs.of(config)) else None

    def traced(self, config: Config) -> Config:
        knobs = self.kernels.knobs.of(config)
        stamped = isinstance(knobs, LadderKnobs) and not self.kernels.has_collective(knobs)
        return config.replace(trace=True) if stamped else config

    def filled(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Operands | None:
        """Operands of a small problem in place of operands without rows, whose results have none; else None."""
        first = operands[0]
        if not self.row_by_row or first is None or first.shape[:1] != (0,):
            return None
        return [with_rows(each, world_size) for each in operands]

    def heap_bytes(self, problem: Any) -> int:
        """The largest scratch; operands lie elsewhere."""
        return self.kernels.scratch_bytes(problem) + SPARE_BYTES

    def compile(self, task: Task[Any], config: Config) -> list[Compiled]:
        """The launches of one call, on tensors without memory: no device is needed."""
        return compile_all(self.kernels.offline(task, config))


class LaunchedOperation(Operation, Generic[P, T, S]):
    """A problem's tensors on one rank, and one config's scratch at a time, in place of the last one's.

    A subclass draws inputs, poisons what kernels write to, and compares.
    """

    def __init__(self, kernels: Kernels[P, Any, T, S], task: Task[P], heap: SymmetricHeap, spin_limit: int) -> None:
        """Allocate the tensors. Their contents are undefined until ``refresh``."""
        self._kernels, self._problem = kernels, task.problem
        self._heap, self._machine, self._spin_limit = heap, task.machine, spin_limit
        ordinary = functools.partial(_empty, heap.device)
        self._tensors: T = kernels.tensors(task.problem, heap.allocate, ordinary)
        self._mark = heap.mark()
        self._setup: Setup[P, Any, T, S] | None = None

    @property
    def scratch(self) -> S | None:
        """Scratch of the config prepared last; None if it has none."""
        return None if self._setup is None else self._setup.scratch

    @property
    def operands(self) -> dict[str, torch.Tensor | None]:
        """The tensors that a caller of an operator gives, by name, in their order."""
        return {name: getattr(self._tensors, name) for name in self._kernels.operands}

    def inputs(self) -> Sequence[torch.Tensor]:
        return [each for each in self.operands.values() if each is not None]

    def outputs(self) -> Sequence[torch.Tensor]:
        found = (getattr(self._tensors, name) for name in self._kernels.results)
        return [each for each in found if each is not None]

    @property
    def wide(self) -> torch.dtype:
        """The type of the reference: fp32, or fp64 for fp32."""
        return torch.float64 if self._problem.dtype == "fp32" else torch.float32

    def prepare(self, config: Config) -> Run:
        """Give the last config's scratch back, take this one's, and return what enqueues one call. Collective."""
        self._heap.barrier()
        self._setup = None
        self._heap.release(self._mark)
        first: torch.Tensor = getattr(self._tensors, self._kernels.operands[0])
        self._setup = Setup(
            self._kernels, Task(self._problem, self._machine), config, self._heap, self._spin_limit,
            shard=first if self._heap.owns(first) else None,
        )  # fmt: skip
        return self._setup.bind(self._tensors)

    def batch(self) -> Batch:
        """Copies of the present inputs and results, from which smaller problems ``take_rows``."""
        named = {**self.operands, **{name: getattr(self._tensors, name) for name in self._kernels.results}}
        copies = {name: each.clone() for name, each in named.items() if each is not None}
        return Batch(self._problem, self._heap, copies)

    def take_rows(self, whole: Batch, first: int) -> None:
        """Make the rows from ``first`` on of a larger batch the inputs, and poison the results. Collective."""
        for name, tensor in self.operands.items():
            if tensor is not None:
                tensor.copy_(self._of_batch(whole, name, tensor, first))
        self.poison()

    def unlike_rows(self, whole: Batch, first: int) -> list[int]:
        """The rows of this rank's results in which any bit differs from those of the larger batch. Collective."""
        found: set[int] = set()
        for name in self._kernels.results:
            result = getattr(self._tensors, name)
            if result is not None:
                found.update(unlike(result, self._of_batch(whole, name, result, first)).tolist())
        return sorted(found)

    def _of_batch(self, whole: Batch, name: str, like: torch.Tensor, first: int) -> torch.Tensor:
        return whole.cut(name, like, first, self._problem.batch_rows)

    def poison(self) -> None:
        """Fill with NaN the results, and what a right call of the config prepared last writes before it reads it."""
        for output in self.outputs():
            poison(output)
        if self._setup is not None:
            self._setup.poison()

    def traces(self) -> Sequence[torch.Tensor]:
        return [] if self._setup is None else self._setup.traces

    def timed_out(self) -> bool:
        return self._setup is not None and self._setup.timed_out()


class DrawnOperation(LaunchedOperation[P, T, S]):
    """An operation whose ``refresh`` draws ``count`` sets of inputs, whose references it makes together."""

    count: ClassVar[int]
    _number = 0
    """The set that is in place."""

    @abstractmethod
    def put(self, number: int) -> None:
        """Enqueue what makes a set the inputs, and note its number."""

    @abstractmethod
    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The distance of outputs from the reference for a set."""

    def input_sets(self, seed: int) -> InputSets:
        self.refresh(seed)
        return self

    def error(self) -> Error:
        return self.error_of(self.outputs(), self._number)


def with_rows(tensor: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    """A tensor with so many rows in place of one that has none."""
    if tensor is None or tensor.shape[:1] != (0,):
        return tensor
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _empty(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Integers, which select or count, are zero: the library's way runs and is captured before there are inputs, and
    one beyond a tensor's end would end the process.
    """
    empty = torch.empty(shape, dtype=dtype, device=device)
    return empty if dtype.is_floating_point else empty.zero_()
