"""The contract of a workload's kernels: the tensors of a call, its scratch, its launches, and how they are enqueued."""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from autotune.config import Config
from autotune.errors import WorkloadError
from autotune.heap.arena import SymmetricHeap
from autotune.heap.status import new_status, status_shape
from autotune.kernels.launching.graphs import replayed
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.plan import Launch, in_order
from autotune.kernels.launching.scratch import share
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate, Run, meta
from autotune.machine import Machine
from autotune.problem import Problem
from autotune.task import Task

LIBRARY = "bsp"
"""The mode that is the library's own way."""

SPINS_OFFLINE = 1 << 20
"""Stands for the limit of a wait where kernels are only compiled."""


class Shared(Protocol):
    """The scratch of a config: tensors that its kernels keep between calls, all zero at the start.

    At run time sizes that vary share memory: after a call of another size all of it is zero anew.
    """

    def poison(self) -> None:
        """Fill with NaN what a right call writes before it reads it: inboxes, not counters."""


P = TypeVar("P", bound=Problem)
K = TypeVar("K", bound=Knobs)
T = TypeVar("T")
S = TypeVar("S", bound=Shared)
MaybeS = TypeVar("MaybeS", bound=Shared | None)


@dataclass(frozen=True)
class Call(Generic[P, K, T, MaybeS]):
    """One call of a config on one rank: all that its launches are made from."""

    problem: P
    knobs: K
    machine: Machine
    tensors: T
    scratch: MaybeS
    bases: torch.Tensor
    """The heap's base address on each rank, int64 [world_size]."""
    rank: int
    status: torch.Tensor
    """int64: what waits set when they time out, and programs end with ``seal`` by; see ``heap/device.py``."""
    spin_limit: int
    """Polls before a wait times out."""
    group: Any = None
    """The ranks' process group for the library's collectives; None: the default group."""
    heap: SymmetricHeap | None = None
    """Heap of the baselines' persistent buffers; None where a call is only compiled."""

    @property
    def task(self) -> Task[P]:
        return Task(self.problem, self.machine)

    def common(self) -> dict[str, Any]:
        """Arguments of every kernel that talks to peers."""
        scratch: Any = self.scratch
        return {
            "rank": self.rank, "heap_bases": self.bases, "epoch_counter": scratch.epoch_counter,
            "status": self.status, "spin_limit": self.spin_limit, "WORLD": self.problem.world_size,
        }  # fmt: skip


class Kernels(ABC, Generic[P, K, T, S]):
    """The launches of one workload: a subclass beside the device code, the same for our workloads and for users'."""

    knobs: type[K]
    tensors_type: type[T]
    """A dataclass of tensors: the operands in the order in which an operator takes them, and the results."""
    results: tuple[str, ...] = ("out",)
    """Fields of the tensors that a call writes."""

    @abstractmethod
    def tensors(self, problem: P, shared: Allocate, own: Allocate) -> T:
        """Operands and result with undefined contents. ``shared`` allocates on the heap, ``own`` on this device."""

    @abstractmethod
    def scratch(self, task: Task[P], knobs: K, shared: Allocate, own: Allocate) -> S | None:
        """The scratch of a config; None in a mode that launches none of our kernels."""

    @abstractmethod
    def scratch_bytes(self, problem: P) -> int:
        """The most that the scratch of any config of the problem takes on the heap, with room for alignment."""

    @abstractmethod
    def plan(self, call: Call[P, K, T, S]) -> list[Launch]:
        """The launches of one call, in order. They are compiled offline too, from tensors without memory."""

    def run(self, call: Call[P, K, T, S], launches: list[Launch], heap: SymmetricHeap) -> Run:
        """Enqueue a call whose plan is ``launches``: by default one after the other.

        It is captured and replayed unless it ``has_collective``: what changes from call to call stays on the device.
        """
        return in_order(launches)

    def has_collective(self, knobs: K) -> bool:
        """True if a call makes collectives of the library, which no graph of ours may hold: by default in ``bsp``."""
        return knobs.mode == LIBRARY

    def library(self, call: Call[P, K, T, None]) -> Run:
        """Enqueue a call in a mode without scratch. Collective if it captures."""
        raise WorkloadError(
            f"{type(self).__name__}.scratch gave None for mode={call.knobs.mode}, as for the library's own way, but "
            "there is no method library; return the scratch, or define library"
        )

    def read_by_peers(self, problem: P, knobs: K) -> tuple[int, ...] | None:
        """Shape of the first operand where peers read it, so that it must lie on the heap; else None."""
        return None

    def also_read_by_peers(self, problem: P, knobs: K) -> tuple[str, ...]:
        """Names of further operands that peers read: each call copies them to the heap."""
        return ()

    def readable(self, problem: P, knobs: K, name: str, operand: torch.Tensor) -> torch.Tensor:
        """The operand, or a contiguous copy if the kernels cannot use its strides."""
        return operand

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors that a caller gives, in their order."""
        fields = dataclasses.fields(self.tensors_type)  # type: ignore[arg-type]  # it is a dataclass
        return tuple(field.name for field in fields if field.name not in self.results)

    def bound(self, operands: Sequence[torch.Tensor | None], outs: Sequence[torch.Tensor]) -> T:
        """A caller's operands and results as ``plan`` takes them."""
        named: dict[str, Any] = dict(zip((*self.operands, *self.results), (*operands, *outs), strict=True))
        return self.tensors_type(**named)

    def offline(self, task: Task[P], config: Config) -> list[Launch]:
        """The launches of one call on tensors without memory, to be compiled for a machine that is not here."""
        problem = task.problem
        knobs = self.knobs.of(config)
        scratch = self.scratch(task, knobs, meta, meta)
        if scratch is None:
            return []
        tensors, bases = self.tensors(problem, meta, meta), meta((problem.world_size,), torch.int64)
        status = meta(status_shape(problem.world_size), torch.int64)
        return self.plan(Call(problem, knobs, task.machine, tensors, scratch, bases, 0, status, SPINS_OFFLINE))


@dataclass(frozen=True)
class Kept(Generic[S]):
    """The memory that a config keeps between calls."""

    scratch: S | None
    shard: torch.Tensor | None
    """The first operand where peers read it."""
    further: dict[str, torch.Tensor]
    """Further operands that peers read."""

    @classmethod
    def of(
        cls, kernels: Kernels[P, K, T, S], task: Task[P], knobs: K, shared: Allocate, own: Allocate,
        shard: torch.Tensor | None = None,
    ) -> Kept[S]:  # fmt: skip
        """``shared`` allocates on the heap, ``own`` on this device; no shard where one is given."""
        problem = task.problem
        scratch = kernels.scratch(task, knobs, shared, own)
        shape = kernels.read_by_peers(problem, knobs)
        if shape is not None and shard is None:
            shard = shared(shape, OPERAND_DTYPES[problem.dtype])
        further = {}
        for name in kernels.also_read_by_peers(problem, knobs):
            like: torch.Tensor = getattr(kernels.tensors(problem, meta, meta), name)
            further[name] = shared(tuple(like.shape), like.dtype)
        return cls(scratch, None if shape is None else shard, further)


class Setup(Generic[P, K, T, S]):
    """One config set up on one rank: its scratch, on which calls bound to several sets of tensors may take turns.

    Where peers read the first operand, they read ``shard``: a call copies the operand there first if it lies elsewhere.
    Others that they read it always copies.
    """

    def __init__(
        self, kernels: Kernels[P, K, T, S], task: Task[P], config: Config, heap: SymmetricHeap,
        spin_limit: int, shard: torch.Tensor | None = None, kept: Kept[S] | None = None,
        status: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Allocate what is ``kept``, all of it zero, unless it is given; a shard and a status likewise. Collective
        where it allocates. Raises HeapExhausted.
        """
        self.knobs = kernels.knobs.of(config)
        self._kernels, self._problem, self._machine = kernels, task.problem, task.machine
        self._heap, self._spin_limit = heap, spin_limit
        self._status = new_status(heap) if status is None else status
        if kept is None:
            kept = share(heap, functools.partial(Kept.of, kernels, task, self.knobs, shard=shard))
        self.scratch: S | None = kept.scratch
        self.shard = kept.shard
        self._own_shard = None if shard is not None else kept.shard
        self._further = kept.further
        self.traces: list[torch.Tensor] = []
        """The stamps of the last call bound, a tensor for each traced launch."""

    def bind(self, tensors: T, *, ahead: bool = False) -> Run:
        """The function that enqueues one call on these tensors; ``ahead`` compiles its kernels now, not at their first
        launch.

        Collective in modes that capture a CUDA graph.
        """
        if self.scratch is None:
            return self._kernels.library(self._call(tensors, None))
        read = {**({} if self.shard is None else {self._kernels.operands[0]: self.shard}), **self._further}
        given: dict[str, torch.Tensor] = {name: getattr(tensors, name) for name in read}
        copied = {name: place for name, place in read.items() if place.data_ptr() != given[name].data_ptr()}
        if copied:
            tensors = dataclasses.replace(tensors, **copied)  # type: ignore[type-var]  # it is a dataclass
        call = self._call(tensors, self.scratch)
        launches = self._kernels.plan(call)
        self.traces = [trace for launch in launches if (trace := launch.arguments.get("trace")) is not None]
        if ahead and not self._machine.is_interpreter:
            for launch in launches:
                launch.compile()
        run = self._kernels.run(call, launches, self._heap)
        if copied:
            run = functools.partial(_copy_and_run, [(place, given[name]) for name, place in copied.items()], run)
        return run if self._kernels.has_collective(self.knobs) else replayed(run, self._heap)

    def poison(self) -> None:
        """Fill with NaN what a right call writes before it reads it: inboxes, and copies of operands."""
        if self.scratch is not None:
            self.scratch.poison()
        if self._own_shard is not None:
            self._own_shard.fill_(math.nan)
        for copy in self._further.values():
            copy.fill_(math.nan)

    def timed_out(self) -> bool:
        """True if a wait has timed out since the status was allocated. Waits for the device."""
        return bool(self._status[0].item())

    def _call(self, tensors: T, scratch: MaybeS) -> Call[P, K, T, MaybeS]:
        heap = self._heap
        return Call(
            self._problem, self.knobs, self._machine, tensors, scratch, heap.bases, heap.rank, self._status,
            self._spin_limit, heap.library_group, heap,
        )  # fmt: skip


def _copy_and_run(copies: Sequence[tuple[torch.Tensor, torch.Tensor]], run: Run) -> None:
    for place, given in copies:
        place.copy_(given)  # safe to overwrite: where peers read it, a call ends only when every peer has read
    run()
