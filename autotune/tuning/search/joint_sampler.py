"""An Optuna sampler for spaces of parts that depend on each other: the proposer behind Optuna's own interface."""

from __future__ import annotations

import copy
import math
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.tuning.search.learned_space import LearnedSpace
from autotune.tuning.search.proposer import GUIDED_FROM, Candidate, Given, Proposer

REFUSED = "valid"
"""A trial that violates the constraint of this name was refused unrun: it says nothing about those beside it."""

FEWEST_MEASURED, ENOUGH_IN_VAIN = 40, 12
"""Configs after which a search may end, and proposals in a row that are not worth a trial, after which it does: with 64
trials in the median, 0.1 % from what 150 find, 1.0 % at most (six recorded spaces, three seeds each, 2026-11-27).
"""

ENOUGH_STALE = 40
"""Configs in a row that gained next to nothing, after which a search ends as well: in a large space the surrogate
always hopes for something elsewhere. 56 searches of 20 to 118 trials on 2 and 4 H100 would have ended with 50 in the
median, 0.1 % from what they found, 2.1 % at most; 17 recorded spaces, four seeds each, with 47, 0.05 % from what 120
find, 1.0 % at most (2026-11-28).
"""

LEARNT = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of trials that samplers learn from; by Optuna's convention a failed one counts as deleted."""


class JointSampler(BaseSampler):
    """Steps from the best that a surrogate expects most of, and TPE beside them, over one space for all modes.

    It serves any study with one objective. Which parameters there are, which of them depend on the value of another,
    and in which ranges, it learns from the trials that have ended; the first are drawn at random. Integers and floats
    are searched on a grid, of 33 points where there are more. ``given`` tells a space of dimensions and constraints
    beforehand, and what else is known of it. Trials under way, of this process or of others, are taken into account.

    A trial that is pruned or violates a constraint counts as bad as the worst value. Ask for ``logarithmic`` where all
    values are positive and a factor means the same everywhere, as with times.
    """

    def __init__(self, seed: int | None = None, given: Given | None = None, *, logarithmic: bool = False) -> None:
        """``given``'s space has to be the one that trials suggest from: see ``Given.narrowed``."""
        self._given, self._seed, self._logarithmic = given, seed, logarithmic
        self._lock = threading.RLock()
        self._study: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._random, self._independent = random.Random(self._seed), RandomSampler(seed=self._seed)
        self._seen: set[int] = set()
        self._settled = 0
        """All trials with a lower number have been seen."""
        self._claims: dict[int, Candidate] = {}
        self._next: Candidate | None = None
        self._shape: Shape | None = None
        if self._given is not None:
            self._take_shape(GivenSpace(self._given), self._given)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def reseed_rng(self) -> None:
        with self._lock:
            self._random.seed()
            self._independent.reseed_rng()

    # What Optuna calls

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters known, whichever mode has them."""
        with self._lock:
            self.catch_up(study)
            return dict(self._shape.distributions) if self._shape is not None else {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of one config; none while nothing is known of the space, or where all of it is used up."""
        with self._lock:
            if self._shape is None or not self.ready(study, trial.number):
                return {}
            assert self._next is not None
            self._claims[trial.number], self._next = self._next, None
            parameters = self._shape.parameters(self._claims[trial.number].config)
            # Another thread may have seen the space anew since this trial inferred it; a wrapper may fix some of it.
            return {name: value for name, value in parameters.items() if name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """At random: a parameter that no trial has had before."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Learn how a trial ended, at once: results count in the order in which they come."""
        ended = copy.copy(trial)
        ended.state, ended.values = state, values
        with self._lock:
            self.catch_up(study)
            self._take_in(study, ended)

    # For who asks and tells

    def ready(self, study: Study, number: int = -1) -> bool:
        """False where the space is used up: whoever asks the study all the same gets what was tried before.

        ``number`` is that of a trial which is to get the proposal.
        """
        with self._lock:
            self.catch_up(study)
            if self._next is None and self._shape is not None:
                self._next = self.proposer.propose(self._elsewhere(study, number))
            return self._next is not None

    def source(self, number: int) -> str:
        """The source of a trial that is under way: a first config, the surrogate, TPE, or chance."""
        with self._lock:
            if number not in self._claims and self._next is not None:
                # Optuna asks no sampler where each parameter has one value.
                self._claims[number], self._next = self._next, None
            return self._claims[number].source

    @property
    def is_settled(self) -> bool:
        """True once next to nothing was gained by many configs, or the surrogate expects no more of its proposals."""
        if self._shape is None or self.proposer.measured < FEWEST_MEASURED:
            return False
        return self.proposer.in_vain >= ENOUGH_IN_VAIN or self.proposer.stale >= ENOUGH_STALE

    def catch_up(self, study: Study) -> None:
        """Learn what has ended in the study since the last time."""
        with self._lock:
            trials = study.get_trials(deepcopy=False)
            # A study of the same name, in another storage or made anew, has fewer trials than were seen here.
            if study.study_name != self._study or len(trials) < self._settled:
                if len(study.directions) > 1:
                    raise ValueError(f"{self} is for one objective; the study {study.study_name} has several")
                if self._study is not None:
                    self._begin()
                self._study = study.study_name
            for trial in trials[self._settled :]:
                if trial.state.is_finished() and trial.number not in self._seen:
                    self._take_in(study, trial)
            while self._settled < len(trials) and self._settled in self._seen:
                self._settled += 1

    def _take_in(self, study: Study, trial: FrozenTrial) -> None:
        self._seen.add(trial.number)
        claimed = self._claims.pop(trial.number, None)
        config = self._shape.config(trial) if self._shape is not None else None
        if self._next is not None and self._next.config == config:
            self._next = None  # it was tried without being asked for
        if claimed is not None and (claimed.config != config or trial.state not in LEARNT):
            # Other values were suggested than proposed, or the trial failed: again it might, so it is not tried again.
            self.proposer.release(claimed.config, again=claimed.config != config)
        if trial.state not in LEARNT or not trial.params:
            return
        if config is not None:
            self.proposer.learn(config, self._judged(study, trial), REFUSED in _violated(trial))
        elif self._given is None:
            self._learn_shape(study, trial)

    def _learn_shape(self, study: Study, trial: FrozenTrial) -> None:
        """A trial that does not fit into what was known of the space: see it anew, in the light of all trials."""
        ended = [t for t in study.get_trials(deepcopy=False) if t.state in LEARNT and t.number in self._seen]
        ended = [*(t for t in ended if t.params and t.number != trial.number), trial]
        if len(ended) < GUIDED_FROM:
            return
        shape = LearnedSpace(ended)
        self._take_shape(shape, shape.given)
        for each in ended:
            config = shape.config(each)
            if config is not None:
                self.proposer.learn(config, self._judged(study, each), REFUSED in _violated(each))

    def _take_shape(self, shape: Shape, given: Given) -> None:
        self._shape, self._next = shape, None
        self._claims.clear()
        self.proposer = Proposer(given, self._random, self._seed, self._logarithmic)

    def _judged(self, study: Study, trial: FrozenTrial) -> float | None:
        """The number to minimise; None where there is none."""
        if trial.state is not TrialState.COMPLETE or trial.values is None or _violated(trial):
            return None
        value: float = trial.values[0]
        if not math.isfinite(value):
            return None
        if self._logarithmic:
            if value <= 0:
                raise ValueError(f"{self}(logarithmic=True) takes positive values; trial {trial.number} has {value}")
            value = math.log(value)
        return value if study.direction is StudyDirection.MINIMIZE else -value

    def _elsewhere(self, study: Study, number: int) -> list[Config]:
        """Configs under way that were not proposed here: enqueued ones, those of other processes."""
        if self._shape is None:
            return []
        late = study.get_trials(deepcopy=False)[self._settled :]
        running = (trial for trial in late if trial.state is TrialState.RUNNING)
        others = (trial for trial in running if trial.number != number and trial.number not in self._claims)
        configs = (self._shape.config(trial) for trial in others)
        return [config for config in configs if config is not None]


class Shape(Protocol):
    """Between a study's parameters and the configs of a space."""

    distributions: Mapping[str, BaseDistribution]

    def config(self, trial: FrozenTrial) -> Config | None:
        """The config of a trial's parameters; None where it is none of the space."""

    def parameters(self, config: Config) -> dict[str, Any]:
        """The parameters that make up a config."""


class GivenSpace:
    """A space whose trials suggest each dimension by the index of its value, as ``Space.suggest`` does."""

    def __init__(self, given: Given) -> None:
        self._space = given.space
        self.distributions: Mapping[str, BaseDistribution] = {
            d.name: d.distribution() for d in self._space.dimensions.values()
        }

    def config(self, trial: FrozenTrial) -> Config | None:
        """The config whose values have these indices."""
        return self._space.of_parameters(trial.params)

    def parameters(self, config: Config) -> dict[str, Any]:
        return dict(self._space.parameters(config))


def _violated(trial: FrozenTrial) -> set[str]:
    return {name for name, violation in trial.constraints.items() if violation > 0}
