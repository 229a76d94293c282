"""A way: the kernels of one mode or several, maybe made of two. The kernels of a workload are its modes' ways."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

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
        """See ``Kernels``, as for the next one."""
        return None

    def also_read_by_peers(self, problem: P, mode: M) -> tuple[str, ...]:
        return ()

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


@dataclass(frozen=True)
class Pair:
    """The scratch of two ways, one after the other."""

    before: Any = None
    after: Any = None

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        for each in (self.before, self.after):
            if each is not None:
                each.poison()


class Then(Way[P, M, T, Pair | None]):
    """The second way goes on with what the first leaves. It has a single launch, or none where all is the library's."""

    def __init__(self, before: Way[Any, Any, Any, Any], after: Way[Any, Any, Any, Any]) -> None:
        self.before, self.after = before, after
        self.collective = before.collective

    def problem_after(self, problem: P) -> Any:
        """The second way's problem; by default the first one's."""
        return problem

    def tensors_after(self, call: Call[P, M, T, Pair | None]) -> Any:
        """The second way's tensors; by default the first one's."""
        return call.tensors

    def scratch(self, task: Task[P], mode: M, shared: Allocate, own: Allocate) -> Pair | None:
        left = Task(self.problem_after(task.problem), task.machine)
        before, after = self.before.scratch(task, mode, shared, own), self.after.scratch(left, mode, shared, own)
        return None if before is None and after is None else Pair(before, after)

    def launches(self, call: Call[P, M, T, Pair | None]) -> list[Launch]:
        before, after = self._calls(call)
        return [*self.before.launches(before), *self.after.launches(after)]

    def run(self, call: Call[P, M, T, Pair | None], launches: list[Launch]) -> Run:
        before, after = self._calls(call)
        runs = self.before.run(before, launches[:-1]), self.after.run(after, launches[-1:])

        def run() -> None:
            for each in runs:
                each()

        return run

    def roundings(self, problem: P) -> float:
        return self.before.roundings(problem) + self.after.roundings(self.problem_after(problem))

    def _calls(self, call: Call[P, M, T, Pair | None]) -> tuple[Call[Any, Any, Any, Any], Call[Any, Any, Any, Any]]:
        whole: Call[Any, Any, Any, Any] = call
        scratch, problem, tensors = call.scratch or Pair(), self.problem_after(call.problem), self.tensors_after(call)
        after = replace(whole, problem=problem, tensors=tensors, scratch=scratch.after)
        return replace(whole, scratch=scratch.before), after


class ModeKernels(Kernels[P, Any, T, Any]):
    """A workload's kernels by modes: a bridge until all workloads have them."""

    modes: ClassVar[Modes[Any]]
    ways: ClassVar[Mapping[type[Mode[Any]], Way[Any, Any, Any, Any]]]

    def __init_subclass__(cls) -> None:
        assert cls.ways.keys() == set(cls.modes.by_name.values()), "each mode has a way"
        cls.knobs = cls.modes  # type: ignore[assignment]  # it reads configs, too

    def giving(self, tensors_type: type[T], *results: str) -> Self:
        """These kernels with other results, in tensors of this type."""
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
