"""Proposals: rank 0's part in tuning a kernel: proposes configs and stores their evaluations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.config import Config
from autotune.db import CacheKey, Lease, Provenance, Store, StudyRecord, TrialRecord, Winner
from autotune.decorator import keeping
from autotune.decorator.candidates import ListedSpace, Spaced
from autotune.decorator.key import Call
from autotune.errors import StoreError
from autotune.machine import Machine
from autotune.outcome import Evaluation, Outcome
from autotune.search_spaces import Space
from autotune.task import Task
from autotune.tuning import EFFORTS, Progress
from autotune.tuning.claim import claimed
from autotune.tuning.search import Candidate, Search

SEED = 0


@dataclass(frozen=True)
class KernelTask:
    """One tuning key of one kernel, to be tuned here."""

    call: Call
    machine: Machine
    key: CacheKey
    provenance: Provenance
    url: str
    trials: int | None
    """Limit on the evaluated configs; None for all of a list, or a standard effort in a space."""
    origin: str
    """The kernel's file and name, for people."""
    anew: bool
    """True to measure again; the old study stays in the store."""
    captured: bool
    """True while a CUDA graph is captured: nothing can be timed."""
    expected: Sequence[Config] = ()
    """Winners at other keys that promise most here: a search begins with them."""

    @property
    def as_task(self) -> Task[Any]:
        """The call as a space's problem, of which it reads only what its constraints read."""
        return Task(self.call, self.machine)


Watch = Callable[[Progress], None]
"""Called every now and then while another process tunes the same."""


class Proposals:
    """Proposes the next config and stores every evaluation. All configs if ``trials`` allow, else a search.

    While another process tunes the same into the same database, this one waits for its result.
    """

    def __init__(
        self, task: KernelTask, listed: Sequence[Config], space: Space | None, size: int,
        accepts: Callable[[Config], bool], watch: Watch,
    ) -> None:  # fmt: skip
        """``listed`` is tried in this order; the search of a ``space`` begins with the task's expected configs and the
        first of the list. ``accepts`` may refuse configs, those that the store has too; ``size`` is the number of all
        configs.
        """
        self._task, self._accepts = task, accepts
        self._evaluations: dict[Config, Evaluation] = {}
        self._asked: Candidate | None = None
        self._listed = iter(listed)
        self._search = None
        if space is not None:
            first = [*task.expected, *listed[:1]]
            self._search = Search(space, task.as_task, SEED, first, [], lambda config, evaluation: None)
        self._held = ExitStack()
        self._store: Store | None = None
        self._study: StudyRecord | None = None
        self._lease: Lease | None = None
        for record in self._open(size, watch):
            if accepts(record.config):
                self._learn(Candidate(record.config, record.source), record.evaluation)

    @classmethod
    def of_list(cls, task: KernelTask, listed: Sequence[Config], watch: Watch) -> Proposals:
        """The proposals of a list: every config, or a search among them."""
        few = task.trials is None or len(listed) <= task.trials
        return cls(task, listed, None if few else ListedSpace(listed), len(listed), set(listed).__contains__, watch)

    @classmethod
    def of_space(
        cls, task: KernelTask, candidates: Spaced, accepts: Callable[[Config], bool], watch: Watch
    ) -> Proposals:
        """The proposals of a joint space: every config of a small one, else a search that begins with the default."""
        space, default = candidates.space, candidates.default(task.call, task.machine)
        size = space.size(task.as_task)
        trials = task.trials or EFFORTS["standard"].trials
        if size <= trials:
            return cls(task, list(space.enumerate(task.as_task)), None, size, accepts, watch)
        return cls(dataclasses.replace(task, trials=trials), [default], space, size, accepts, watch)

    def finished(self) -> Config | None:
        """The study's winner, if an earlier run or another process has finished it, and it is accepted here."""
        winner = self._study.winner if self._study is not None else None
        return winner.config if winner is not None and self._accepts(winner.config) else None

    @property
    def timings(self) -> dict[Config, list[float]]:
        """Latencies of all configs that ran, here or in an earlier run, in milliseconds; infinite for failures."""
        ran = [(config, each) for config, each in self._evaluations.items() if each.outcome is not Outcome.INVALID]
        return {config: each.latency.milliseconds if each.latency else [math.inf] * 3 for config, each in ran}

    def adopt(self, config: Config, evaluation: Evaluation) -> None:
        """Adopt and store a measurement from elsewhere."""
        self._asked = Candidate(config, "adopted")
        self._take(evaluation)

    def next(self, last: Evaluation | None = None) -> Config | None:
        """The next config to evaluate, after the result of the last one; None at the end."""
        if last is not None:
            self._take(last)
        while self._left():
            self._asked = self._propose()
            if self._asked is None:
                break
            config = self._asked.config
            if config in self._evaluations:
                continue
            if self._accepts(config):
                return config
            self._take(Evaluation(Outcome.INVALID, "early_config_prune refused it"))
        return None

    def finish(self) -> tuple[Config, Evaluation]:
        """Store and return the winner: by median, 20th and 80th percentile, then order."""
        best = min(self._evaluations, key=lambda config: _rank(self._evaluations[config]))
        evaluation = self._evaluations[best]
        if evaluation.latency is not None:
            others = ((config, each.latency) for config, each in self._evaluations.items() if config != best)
            beside = {config.to_json(): latency.median for config, latency in others if latency is not None}
            winner = Winner(best, evaluation.latency, beside=beside)
            self._write(lambda store, study: store.finish(study, winner, self._lease))
        return best, evaluation

    def close(self) -> None:
        self._store = None
        self._held.close()

    def _left(self) -> bool:
        tried = sum(evaluation.outcome is not Outcome.INVALID for evaluation in self._evaluations.values())
        return self._task.trials is None or tried < self._task.trials

    def _propose(self) -> Candidate | None:
        if self._search is not None and (proposed := self._search.ask()):
            return proposed
        config = next(self._listed, None)
        return Candidate(config, "listed") if config is not None else None

    def _take(self, evaluation: Evaluation) -> None:
        """Take the evaluation of the proposed config."""
        asked = self._asked
        assert asked is not None
        self._learn(asked, evaluation)
        record = TrialRecord(asked.config, evaluation, source=asked.source, number=len(self._evaluations) - 1)
        self._write(lambda store, study: store.record(study, record, self._lease))

    def _learn(self, candidate: Candidate, evaluation: Evaluation) -> None:
        self._evaluations[candidate.config] = evaluation
        if self._search is not None:
            self._search.tell(candidate, evaluation)

    def _write(self, write: Callable[[Store, int], None]) -> None:
        if self._store is None or self._study is None:
            return
        try:
            write(self._store, self._study.id)
        except StoreError as error:
            self._go_on_without(error)

    def _open(self, size: int, watch: Watch) -> Sequence[TrialRecord]:
        """Open the store and claim the study; its trials so far."""
        task = self._task
        if keeping.failure(task.url) is not None:
            return []
        try:
            store = self._store = self._held.enter_context(Store.open(task.url))
            begin = partial(store.study, task.key, task.provenance, seed=SEED, space_size=size, origin=task.origin)
            self._study, lease = self._held.enter_context(claimed(store, begin, watch, anew=task.anew))
            if self._study.state != "finished":
                self._lease = lease
            return store.trials(self._study.id)
        except StoreError as error:
            self._go_on_without(error)
            return []
        except BaseException:  # Ctrl-C while it waits, too
            self.close()
            raise

    def _go_on_without(self, error: StoreError) -> None:
        keeping.give_up(self._task.url, error)
        self.close()
        self._study = None


def _rank(evaluation: Evaluation) -> tuple[float, float, float]:
    latency = evaluation.latency
    return (latency.median, latency.low, latency.high) if latency is not None else (math.inf,) * 3
