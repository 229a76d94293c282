"""The tuning of a model's problems on one gang: the most promising first, each with its share of the budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
        seconds = {each: self.searches[each].limits.seconds for each in wanted}
        if math.isfinite(self.seconds):
            seconds = shares(gains, wanted, self.seconds)
        result.left_out = [each for each in wanted if each not in seconds]
        return self._tune(seconds, result)

    def _entry(self, problem: Problem) -> Entry | None:
        from autotune.tuning.cached import cached

        return cached(self.store, workload(problem.workload), Task(problem, self.machine), self.regime)

    def _tune(self, seconds: Mapping[Problem, float], result: ModelResult) -> bool:
        from autotune.cli.commands.grid_progress import GridProgress

        workloads = {each: workload(each.workload) for each in (*seconds, *result.left_out)}
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
                limits = dataclasses.replace(search.limits, seconds=seconds.get(problem, VERIFYING))
                bench = Bench(
                    workloads[problem], self.machine, self.store, gang, screen, limits, search.effort, search.seed,
                    self.force, self.regime, None,
                )  # fmt: skip
                if not self._tuned(bench, problem, progress, result):
                    return True
        return False

    def _tuned(self, bench: Bench, problem: Problem, progress: GridProgress, result: ModelResult) -> bool:
        """Tune one problem, or verify it where the budget leaves it out; False if the user interrupted it."""
        from autotune.cli.watch import is_live
        from autotune.tuning.warm_start import neighbours

        progress.next_size()
        if not is_live():  # else it stands above the view
            output.say(f"{progress.line()}: {dashed(problem.workload)} {problem_text(problem.as_dict())}")
        search = problem not in result.left_out
        lent = [] if search else neighbours(problem, result.entries.values())
        found = bench.tune(problem, lent, progress, search)
        if found.entry is None and not found.interrupted:
            result.failed.append(problem)
        if found.entry is not None:
            result.entries[problem] = found.entry
        progress.done(result.tuned_cells(problem))
        return not found.interrupted
