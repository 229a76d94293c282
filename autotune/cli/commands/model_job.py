"""The tuning of a model's problems on one gang: the most promising first, each with its share of the budget."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from autotune.cli import output, session
from autotune.cli.commands.grid import Bench
from autotune.cli.commands.model_table import TUNED, ModelResult
from autotune.machine import Machine
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.results.figures import dashed, problem_text
from autotune.task import Task
from autotune.text import counted
from autotune.workloads import workload

if TYPE_CHECKING:
    from autotune.cli.commands.grid_progress import GridProgress
    from autotune.db import Entry, Store
    from autotune.models.forward import Place
    from autotune.tuning import Budget, Evaluator
    from autotune.tuning.screening import Screen


VERIFYING = 10.0
"""Seconds of finals at most for a problem that is not searched."""

SCREENING = 0.5
"""Share of the budget after which no more alternatives are looked at before the searches."""


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
    places: Sequence[Place]
    """Places of all forwards, some with alternatives."""
    force: bool
    regime: Regime

    def tune(self, problems: Sequence[Problem], gains: Mapping[Problem, float], result: ModelResult) -> bool:
        """Tune what is not in the cache and put all into the result; True if the user interrupted it."""
        wanted = sorted(problems, key=lambda each: -gains[each])
        for problem in () if self.force else wanted:
            entry = self._entry(problem, search=problem in self.searched and problem not in self.alternatives)
            if entry is not None:
                result.entries[problem] = entry
        unseen = [each for each in wanted if each in self.alternatives and each not in result.entries]
        interrupted = (bool(unseen) or any(self._left(wanted, result))) and self._tune(wanted, unseen, gains, result)
        result.ruled_out = [each for each in wanted if each in self.alternatives - self._contending(result)]
        result.left_out = [] if interrupted else self._left(wanted, result)[0]
        return interrupted

    @cached_property
    def alternatives(self) -> set[Problem]:
        """Problems to be searched only if they may turn out to be the best for a place."""
        several = {call.problem for place in self.places if len(place) > 1 for way in place for call in way}
        alone = {call.problem for place in self.places if len(place) == 1 for call in place[0]}
        return several.intersection(self.searched) - alone

    def _contending(self, result: ModelResult) -> set[Problem]:
        measured = result.measured(self.regime)
        return {problem for place in self.places for problem in measured.contenders(place)}

    def _left(self, wanted: Sequence[Problem], result: ModelResult) -> tuple[list[Problem], list[Problem]]:
        """The problems that are still to be searched, and those still to be verified."""
        search = set(self.searched) - (self.alternatives - self._contending(result))
        entries = result.entries
        left = [
            each
            for each in wanted
            if each not in result.failed and (each not in entries or (each in search and entries[each].winner.verified))
        ]
        return [each for each in left if each in search], [each for each in left if each not in search]

    def _entry(self, problem: Problem, *, search: bool) -> Entry | None:
        from autotune.tuning.cached import cached

        found = workload(problem.workload)
        return cached(self.store, found, Task(problem, self.machine), self.regime, search=search)

    def _tune(
        self, wanted: Sequence[Problem], unseen: Sequence[Problem], gains: Mapping[Problem, float], result: ModelResult
    ) -> bool:  # fmt: skip
        """Verify the alternatives, search what is to be searched, the most promising first, then verify the others.
        What a search leaves of its share of the budget goes to those that follow; one for which nothing is left is
        verified.
        """
        from autotune.cli.commands.grid_progress import GridProgress

        first, workloads = wanted[0], {each: workload(each.workload) for each in wanted}
        heap_bytes = max(found.heap_bytes(each) for each, found in workloads.items())
        with (
            session.make_screen(workloads[first], Task(first, self.machine)) as screen,
            closing(session.make_gang(workloads[first], Task(first, self.machine), heap_bytes)) as gang,
        ):
            output.say("starting the ranks")
            screen.start()
            gang.start()
            began, left = time.monotonic(), self.seconds
            if unseen:
                output.say(f"{counted(len(unseen), 'alternative')}: the library's way and the default first")
            progress = GridProgress(TUNED, [True] * len(unseen), VERIFYING)
            for problem in unseen:
                if left < self.seconds * (1 - SCREENING):
                    break  # the rest is verified in the end
                if not self._tuned(gang, screen, problem, None, progress, result):
                    return True
                left = self.seconds - (time.monotonic() - began)
            rest, others = self._left(wanted, result)
            progress = GridProgress(TUNED, [True] * len([*rest, *others]), self._seconds_each(rest, len(others)))
            while rest:
                seconds = self._share(rest, gains, left)
                problem = rest.pop(0)
                if seconds is None:
                    others = [problem] * (problem not in result.entries) + others
                elif not self._tuned(gang, screen, problem, seconds, progress, result):
                    return True
                left = self.seconds - (time.monotonic() - began)
            return not all(self._tuned(gang, screen, each, None, progress, result) for each in others)

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
        return (whole + VERIFYING * others) / max(1, len(searched) + others)

    def _tuned(
        self, gang: Evaluator, screen: Screen, problem: Problem, seconds: float | None, progress: GridProgress,
        result: ModelResult,
    ) -> bool:  # fmt: skip
        """Search one problem for so many seconds, or verify it; False if the user interrupted it."""
        from autotune.cli.watch import is_live

        search = self.searches[problem]
        limits = dataclasses.replace(search.limits, seconds=VERIFYING if seconds is None else seconds)
        bench = Bench(
            workload(problem.workload), self.machine, self.store, gang, screen, limits, search.effort, search.seed,
            self.force, self.regime, None,
        )  # fmt: skip
        progress.next_size()
        if not is_live():  # else it stands above the view
            output.say(f"{progress.line()}: {dashed(problem.workload)} {problem_text(problem.as_dict())}")
        found = bench.tune(problem, [], progress, seconds is not None)
        if found.entry is None and not found.interrupted:
            result.failed.append(problem)
        if found.entry is not None:
            result.entries[problem] = found.entry
        progress.done(result.tuned_cells(problem))
        return not found.interrupted
