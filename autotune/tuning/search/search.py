"""The search: one Optuna study of one problem, asked for configs and told how they ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import optuna

from autotune.config import Config
from autotune.outcome import DEFAULT_REGIME, Evaluation, Outcome, Regime
from autotune.problem import Problem
from autotune.search_spaces import Space
from autotune.task import Task
from autotune.tuning.search.joint_sampler import REFUSED, JointSampler
from autotune.tuning.search.proposer import Candidate, Given, no_prediction
from autotune.tuning.search.tpe import ended

FAILED = "works"
"""The constraint that a config violates which was run and failed."""


class Search:
    """The study lives in memory and is rebuilt from the store's trials; its values are microseconds."""

    def __init__(
        self, space: Space, task: Task[Problem], seed: int, first: Iterable[Config],
        reserved: Iterable[Config], on_invalid: Callable[[Config, Evaluation], None],
        predict: Callable[[Config], float | None] = no_prediction, regime: Regime = DEFAULT_REGIME,
    ) -> None:  # fmt: skip
        """Arguments of ``Given``; ``reserved`` are evaluated in any case: the caller tells by ``remember``."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        given = Given(space, task, list(first), list(reserved), predict, on_invalid).narrowed
        self._space, self._regime = given.space, regime
        self._sampler = JointSampler(seed, given, logarithmic=True)
        self._study = optuna.create_study(sampler=self._sampler)

    @property
    def is_settled(self) -> bool:
        """True once no more than WORTH_A_TRIAL is to be gained, as far as can be told."""
        return self._sampler.is_settled

    def ask(self) -> Candidate | None:
        """The next config, never one that was asked for before; None where nothing new could be found, or no config
        promises to gain anything.
        """
        if self.is_settled or not self._sampler.ready(self._study):
            return None
        trial = self._study.ask()
        config = self._space.suggest(trial)
        return Candidate(config, self._sampler.source(trial.number), trial)

    def tell(self, candidate: Candidate, evaluation: Evaluation) -> None:
        if candidate.trial is None:
            self.remember(candidate.config, evaluation)
            return
        value, constraints = self._told(evaluation)
        for name, violation in constraints.items():
            candidate.trial.set_constraint(name, violation)
        self._study.tell(candidate.trial, value, None if value is not None else optuna.trial.TrialState.PRUNED)

    def remember(self, config: Config, evaluation: Evaluation) -> None:
        """Take in an evaluation that the search did not ask for: of an earlier run, a baseline."""
        if self._space.holds(config):  # else it is of a space that has changed since
            self._study.add_trial(ended(self._space, config, *self._told(evaluation)))
            self._sampler.catch_up(self._study)

    def best(self, count: int | None = None) -> list[Config]:
        """The fastest configs known, fastest first."""
        return self._sampler.proposer.best(count)

    def best_of_modes(self) -> list[Config]:
        """The fastest config known of each mode that is near, the fastest of all among them."""
        return self._sampler.proposer.best_of_modes()

    def latency(self, config: Config) -> float:
        """Microseconds that a config was found to take, infinite where it was not measured."""
        return math.exp(self._sampler.proposer.value(config))

    def _told(self, evaluation: Evaluation) -> tuple[float | None, dict[str, float]]:
        """The value of a trial and its constraints, by Optuna's convention violated above 0."""
        if evaluation.latency is not None:
            return evaluation.latency.of(self._regime), {FAILED: -1.0}
        return None, {REFUSED if evaluation.outcome is Outcome.INVALID else FAILED: 1.0}
