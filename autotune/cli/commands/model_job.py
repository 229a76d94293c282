"""The tuning of a model's problems on one gang: the most promising first, each with its share of the budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cli import output, session
from autotune.cli.commands.grid import Bench
from autotune.cli.commands.model_table import TUNED, ModelResult
from autotune.machine import Machine
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.results.figures import dashed, problem_text
from autotune.task import Task
from autotune.workloads import workload

if TYPE_CHECKING:
    from autotune.cli.commands.grid_progress import GridProgress
    from autotune.db import Entry, Store
    from autotune.tuning import Budget


VERIFYING = 10.0
"""Seconds of finals at most for a problem that is not searched."""


@dataclass(frozen=True)
class Search:
    """The options of one problem's search."""

    effort: str
    limits: Budget
    seed: int


@dataclass(frozen=True)
class Job:
    machine: Machine
    store: Store
    searches: Mapping[Problem, Search]
    searched: Collection[Problem]
    """The others are verified between them."""
    seconds: float
    """Budget of all problems together, in place of their own; infinite where each has its own."""
    force: bool
    regime: Regime

    def tune(self, problems: Sequence[Problem], gains: Mapping[Problem, float], result: ModelResult) -> bool:
        """Tune what is not in the cache and put all into the result; True if the user interrupted it."""
        from autotune.models.gains import shares

        cached = {} if self.force else {each: entry for each in problems if (entry := self._entry(each)) is not None}
        result.entries.update(cached)
        wanted = sorted((each for each in problems if each not in cached), key=lambda each: -gains[each])
        if not wanted:
            return False
        searched = [each for each in wanted if each in self.searched]
        seconds = {each: self.searches[each].limits.seconds for each in searched}
        if math.isfinite(self.seconds) and searched:
            seconds = shares(gains, searched, self.seconds)
        result.left_out = [each for each in searched if each not in seconds]
        verified = (each for each in wanted if each not in seconds)
        return self._tune(seconds, {**seconds, **dict.fromkeys(verified, VERIFYING)}, result)

    def _entry(self, problem: Problem) -> Entry | None:
        from autotune.tuning.cached import cached

        found = workload(problem.workload)
        return cached(self.store, found, Task(problem, self.machine), self.regime, search=problem in self.searched)

    def _tune(self, searched: Collection[Problem], seconds: Mapping[Problem, float], result: ModelResult) -> bool:
        """Tune those that are ``searched`` and verify the others, each within its seconds."""
        from autotune.cli.commands.grid_progress import GridProgress

        workloads = {each: workload(each.workload) for each in seconds}
        first = next(iter(seconds))
        heap_bytes = max(found.heap_bytes(each) for each, found in workloads.items())
        progress = GridProgress(TUNED, [True] * len(workloads), sum(seconds.values()) / len(seconds))
        with (
            session.make_screen(workloads[first], Task(first, self.machine)) as screen,
            closing(session.make_gang(workloads[first], Task(first, self.machine), heap_bytes)) as gang,
        ):
            output.say("starting the ranks")
            screen.start()
            gang.start()
            for problem in workloads:
                search = self.searches[problem]
                limits = dataclasses.replace(search.limits, seconds=seconds[problem])
                bench = Bench(
                    workloads[problem], self.machine, self.store, gang, screen, limits, search.effort, search.seed,
                    self.force, self.regime, None,
                )  # fmt: skip
                if not self._tuned(bench, problem, problem in searched, progress, result):
                    return True
        return False

    def _tuned(
        self, bench: Bench, problem: Problem, search: bool, progress: GridProgress, result: ModelResult
    ) -> bool:  # fmt: skip
        """Tune one problem, or verify it; False if the user interrupted it."""
        from autotune.cli.watch import is_live

        progress.next_size()
        if not is_live():  # else it stands above the view
            output.say(f"{progress.line()}: {dashed(problem.workload)} {problem_text(problem.as_dict())}")
        found = bench.tune(problem, [], progress, search)
        if found.entry is None and not found.interrupted:
            result.failed.append(problem)
        if found.entry is not None:
            result.entries[problem] = found.entry
        progress.done(result.tuned_cells(problem))
        return not found.interrupted
