"""A way: the kernels of one mode or several. The kernels of a workload are the ways of its modes."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.contract import Call, Kernels, MaybeS, P, T
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.mode import LibraryMode, Mode, Modes
from autotune.kernels.launching.plan import Launch, in_order
from autotune.kernels.launching.tensors import Allocate, Run
from autotune.task import Task

M = TypeVar("M", bound=Mode[Any])
L = TypeVar("L", bound=LibraryMode[Any])


class Way(ABC, Generic[P, M, T, MaybeS]):
    """Scratch, launches and roundings of a mode; ``call.knobs`` is the mode's config."""

    collective: bool = False
    """True if a call makes collectives of the library, which no graph of ours may hold."""

    @abstractmethod
    def scratch(self, task: Task[P], mode: M, shared: Allocate, own: Allocate) -> MaybeS:
        """Memory kept between calls, ``shared`` on the heap; None if no kernel of ours is launched."""

    @abstractmethod
    def launches(self, call: Call[P, M, T, MaybeS]) -> list[Launch]:
        """The launches of one call, in order. They are compiled offline too, from tensors without memory."""

    def run(self, call: Call[P, M, T, MaybeS], launches: list[Launch]) -> Run:
        """Enqueue a call whose plan is ``launches``: by default one after the other."""
        return in_order(launches)

    def read_by_peers(self, problem: P, mode: M) -> tuple[int, ...] | None:
        """See ``Kernels``, as for the next two."""
        return None

    def also_read_by_peers(self, problem: P, mode: M) -> tuple[str, ...]:
        return ()

    def readable(self, problem: P, mode: M, name: str, operand: torch.Tensor) -> torch.Tensor:
        return operand

    @abstractmethod
    def roundings(self, problem: P) -> float:
        """Roundings of the result, each in units of one that rounds all of it; the tolerance follows from them."""


class LibraryWay(Way[P, L, T, None]):
    """The library's kernels and its collectives."""

    collective = True

    def scratch(self, task: Task[P], mode: L, shared: Allocate, own: Allocate) -> None:
        return None

    def launches(self, call: Call[P, L, T, None]) -> list[Launch]:
        return []

    def run(self, call: Call[P, L, T, None], launches: list[Launch]) -> Run:
        return self.eager(call)

    @abstractmethod
    def eager(self, call: Call[P, L, T, None]) -> Run: ...


class ModeKernels(Kernels[P, Any, T, Any]):
    """A workload's kernels by modes: a bridge until all workloads have them."""

    modes: ClassVar[Modes[Any]]
    ways: ClassVar[Mapping[type[Mode[Any]], Way[Any, Any, Any, Any]]]

    def __init_subclass__(cls) -> None:
        assert cls.ways.keys() == set(cls.modes.by_name.values()), "each mode has a way"
        cls.knobs = cls.modes  # type: ignore[assignment]  # it reads configs, too

    def giving(self, tensors_type: type[T], *results: str) -> Self:
        """The same kernels where a call has other results, which lie in tensors of this type."""
        kernels = copy.copy(self)
        kernels.tensors_type, kernels.results = tensors_type, results
        return kernels

    def way(self, mode: Mode[P]) -> Way[P, Any, T, Any]:
        return self.ways[type(mode)]

    def way_of(self, config: Config) -> Way[P, Any, T, Any]:
        return self.way(self.modes.of(config))

    def scratch(self, task: Task[P], knobs: Mode[P], shared: Allocate, own: Allocate) -> Any:
        return self.way(knobs).scratch(task, knobs, shared, own)

    def plan(self, call: Call[P, Any, T, Any]) -> list[Launch]:
        return self.way(call.knobs).launches(call)

    def run(self, call: Call[P, Any, T, Any], launches: list[Launch], heap: SymmetricHeap) -> Run:
        return self._run(call, launches)

    def library(self, call: Call[P, Any, T, None]) -> Run:
        return self._run(call, [])

    def _run(self, call: Call[P, Any, T, Any], launches: list[Launch]) -> Run:
        """A mode with the library's collective says whether a call is captured as a CUDA graph."""
        run = self.way(call.knobs).run(call, launches)
        return graphed(run) if isinstance(call.knobs, LibraryMode) and call.knobs.launch == "graph" else run

    def has_collective(self, knobs: Mode[P]) -> bool:
        return self.way(knobs).collective

    def read_by_peers(self, problem: P, knobs: Mode[P]) -> tuple[int, ...] | None:
        return self.way(knobs).read_by_peers(problem, knobs)

    def also_read_by_peers(self, problem: P, knobs: Mode[P]) -> tuple[str, ...]:
        return self.way(knobs).also_read_by_peers(problem, knobs)

    def readable(self, problem: P, knobs: Mode[P], name: str, operand: torch.Tensor) -> torch.Tensor:
        return self.way(knobs).readable(problem, knobs, name, operand)
