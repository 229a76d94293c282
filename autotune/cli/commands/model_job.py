"""The tuning of a model's problems on one gang: the most promising first, each with its share of the budget."""

from __future__ import annotations

import dataclasses
import math
import time
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
        cached = {} if self.force else {each: entry for each in problems if (entry := self._entry(each)) is not None}
        result.entries.update(cached)
        wanted = sorted((each for each in problems if each not in cached), key=lambda each: -gains[each])
        if not wanted:
            return False
        return self._tune(wanted, gains, result)

    def _entry(self, problem: Problem) -> Entry | None:
        from autotune.tuning.cached import cached

        found = workload(problem.workload)
        return cached(self.store, found, Task(problem, self.machine), self.regime, search=problem in self.searched)

    def _tune(self, wanted: Sequence[Problem], gains: Mapping[Problem, float], result: ModelResult) -> bool:
        """Search those to be searched, the most promising first, then verify the others. What a search leaves of its
        share of the budget goes to those that follow; one for which nothing is left is verified.
        """
        from autotune.cli.commands.grid_progress import GridProgress

        workloads = {each: workload(each.workload) for each in wanted}
        first, heap_bytes = wanted[0], max(found.heap_bytes(each) for each, found in workloads.items())
        rest = [each for each in wanted if each in self.searched]
        others = [each for each in wanted if each not in self.searched]
        progress = GridProgress(TUNED, [True] * len(wanted), self._seconds_each(rest, len(others)))
        with (
            session.make_screen(workloads[first], Task(first, self.machine)) as screen,
            closing(session.make_gang(workloads[first], Task(first, self.machine), heap_bytes)) as gang,
        ):
            output.say("starting the ranks")
            screen.start()
            gang.start()
            began, left = time.monotonic(), self.seconds
            for problem in [*rest, *others]:
                seconds = self._share(rest, gains, left) if rest else None
                if rest:
                    rest.pop(0)
                    result.left_out += [problem] if seconds is None else []
                search = self.searches[problem]
                limits = dataclasses.replace(search.limits, seconds=VERIFYING if seconds is None else seconds)
                bench = Bench(
                    workloads[problem], self.machine, self.store, gang, screen, limits, search.effort, search.seed,
                    self.force, self.regime, None,
                )  # fmt: skip
                if not self._tuned(bench, problem, seconds is not None, progress, result):
                    return True
                left = self.seconds - (time.monotonic() - began)
        return False

    def _share(self, rest: Sequence[Problem], gains: Mapping[Problem, float], left: float) -> float | None:
        """Seconds for the first of those that are still to be searched; None if too little is left for a search."""
        from autotune.models.gains import shares
        from autotune.tuning.effort import SHORTEST

        if math.isinf(self.seconds):
            return self.searches[rest[0]].limits.seconds
        return shares(gains, rest, left)[rest[0]] if left >= SHORTEST else None

    def _seconds_each(self, searched: Sequence[Problem], others: int) -> float:
        """Average seconds of a problem, if no search leaves any of its share."""
        own = (self.searches[each].limits.seconds for each in searched)
        whole = self.seconds if math.isfinite(self.seconds) and searched else sum(own)
        return (whole + VERIFYING * others) / (len(searched) + others)

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
