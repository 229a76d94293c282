"""A way made of two: the second goes on with what the first leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autotune.kernels.launching.contract import Call, P, T
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Allocate, Run
from autotune.kernels.launching.way import M, Way
from autotune.task import Task


@dataclass(frozen=True)
class Pair:
    """The scratch of both."""

    before: Any = None
    after: Any = None

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        for each in (self.before, self.after):
            if each is not None:
                each.poison()


class Then(Way[P, M, T, Pair | None]):
    """``after`` has a single launch, or none where all is the library's."""

    def __init__(self, before: Way[Any, Any, Any, Any], after: Way[Any, Any, Any, Any]) -> None:
        self.before, self.after = before, after
        self.collective = before.collective

    def problem_after(self, problem: P) -> Any:
        """What is left of the problem; by default all of it."""
        return problem

    def tensors_after(self, call: Call[P, M, T, Pair | None]) -> Any:
        """The tensors of the second way; by default the same."""
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
