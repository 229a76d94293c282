"""The search: which config next. Optuna's TPE over the joint space, then steps around the best."""

from __future__ import annotations

import math
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import optuna

from autotune.config import Config
from autotune.environment import Machine
from autotune.outcome import Evaluation, Outcome
from autotune.problem import Problem
from autotune.search_spaces import Space

LOCAL_FROM = 0.1
"""Share of the budget after which most configs are neighbours of the best: TPE alone leaves bad seeds behind."""

LOCAL_SHARE = 0.75
"""Of the configs after that."""

LOCAL_AROUND = 3
"""How many of the best are stepped away from."""

PREDICTED = 4
"""Configs that the cost model adds to the first ones, …"""

PREDICTED_DRAWS = 100
"""… chosen among so many random ones."""

MENDING_STEPS = 60

DRAWS = 200
"""Random configs tried before the space is taken to be used up."""

TRIES = 3
"""Proposals of the sampler, with what lies beside them, before a step from one of the best is taken instead."""


@dataclass(frozen=True)
class Candidate:
    """A config to evaluate, and who proposed it."""

    config: Config
    source: str
    trial: optuna.Trial | None = None


class Search:
    """Ask for configs, tell how they ended. The study lives in memory and is rebuilt from the store's trials."""

    def __init__(
        self, space: Space, problem: Problem, machine: Machine, seed: int, first: Iterable[Config],
        reserved: Iterable[Config], on_invalid: Callable[[Config, Evaluation], None],
        predict: Callable[[Config], float | None] = lambda config: None,
    ) -> None:  # fmt: skip
        """``first`` are tried before the sampler is asked; ``on_invalid`` gets what it proposes in vain.

        Then come the best of some random configs by ``predict``, a cost model's microseconds or None.
        ``reserved`` are never proposed: the caller evaluates them in any case and lets the search ``remember``.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._problem, self._machine = space.narrowed(problem, machine), problem, machine
        self._random = random.Random(seed)
        # Multivariate by group: the dimensions depend on the mode. Startup trials come on top of ``first``.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # ``group``
            sampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=8, n_ei_candidates=48
            )
        self._study = optuna.create_study(sampler=sampler)
        self._first = deque(first)
        self._known: dict[Config, float] = dict.fromkeys(reserved, math.inf)
        """Log of the latency of every config asked for or told, infinite where there is none."""
        self._on_invalid = on_invalid
        self._first.extend(self._promising(predict))

    def remember(self, config: Config, evaluation: Evaluation) -> None:
        """Take in an evaluation that the search did not ask for: of an earlier run, a baseline."""
        if self._known.get(config, math.inf) < math.inf:
            return
        value = _value(evaluation)
        self._known[config] = value
        try:
            parameters, distributions = self._space.parameters(config), self._space.distributions(config)
        except (KeyError, StopIteration):
            return  # a config of a space that has changed since
        self._study.add_trial(
            optuna.trial.create_trial(
                params=parameters,
                distributions=distributions,
                value=value if math.isfinite(value) else None,
                state=optuna.trial.TrialState.COMPLETE if math.isfinite(value) else optuna.trial.TrialState.PRUNED,
                constraints={"works": -1.0 if math.isfinite(value) else 1.0},
            )
        )

    def ask(self, used: float) -> Candidate | None:
        """The next config, never one that was asked for before; None where nothing new could be found.

        ``used`` is the share of the budget that is gone.
        """
        while self._first:
            config = self._first.popleft()
            if config not in self._known:
                return self._claim(Candidate(config, "first"))
        if used >= LOCAL_FROM and self._random.random() < LOCAL_SHARE:
            candidate = self._neighbour()
            if candidate is not None:
                return self._claim(candidate)
        candidate = self._sampled() or self._neighbour() or self._drawn()
        return self._claim(candidate) if candidate is not None else None

    def tell(self, candidate: Candidate, evaluation: Evaluation) -> None:
        """How a candidate ended."""
        if candidate.trial is None:
            del self._known[candidate.config]
            self.remember(candidate.config, evaluation)
            return
        value = _value(evaluation)
        self._known[candidate.config] = value
        self._finish(candidate.trial, value)

    def best(self, count: int) -> list[Config]:
        """The fastest configs known, fastest first."""
        measured = [config for config, value in self._known.items() if math.isfinite(value)]
        return sorted(measured, key=lambda config: self._known[config])[:count]

    def latency(self, config: Config) -> float:
        """Microseconds that a config was found to take, infinite where it was not measured."""
        return math.exp(self._known.get(config, math.inf))

    def _claim(self, candidate: Candidate) -> Candidate:
        self._known.setdefault(candidate.config, math.inf)
        return candidate

    def _sampled(self) -> Candidate | None:
        """What the sampler proposes; where that is invalid or known, a config next to it that is neither.

        Asking the sampler again instead would cost some 50 ms each time, and a converged sampler repeats itself.
        """
        for _ in range(TRIES):
            trial = self._study.ask()
            config = self._space.suggest(trial)
            violation = self._space.violation(config, self._problem, self._machine)
            if violation is None and config not in self._known:
                return Candidate(config, "sampler", trial)
            if violation is not None:
                self._finish(trial, math.inf)
                if config not in self._known:
                    self._known[config] = math.inf
                    self._on_invalid(config, Evaluation(Outcome.INVALID, violation))
                beside = self._mended(config)
            else:
                beside = self._step_from(config)
                if beside is None:
                    # Nothing new around it, as in a mode of two configs: else the sampler would dwell there for ever.
                    self._finish(trial, math.inf)
                else:
                    self._study.tell(trial, state=optuna.trial.TrialState.FAIL)  # invisible: it taught nothing new
            if beside is not None and beside not in self._known:
                return Candidate(beside, "sampler")
        return None

    def _mended(self, config: Config) -> Config | None:
        """A valid config near an invalid one: dimensions of broken constraints are drawn anew until none is broken.

        A proposal of the sampler costs some 50 ms, this costs one.
        """
        for _ in range(MENDING_STEPS):
            broken = self._space.broken(config, self._problem, self._machine)
            if broken is None:
                return config
            changeable = [name for name in broken.uses if name != "mode"]
            if not changeable:
                return None
            name = self._random.choice(changeable)
            config = config.replace(**{name: self._random.choice(self._space.dimensions[name].values)})
        return None

    def _finish(self, trial: optuna.Trial, value: float) -> None:
        # PRUNED with a violated constraint: the samplers learn from that; they never see FAIL.
        trial.set_constraint("works", -1.0 if math.isfinite(value) else 1.0)
        if math.isfinite(value):
            self._study.tell(trial, value)
        else:
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)

    def _neighbour(self) -> Candidate | None:
        """A step from one of the best; from the next ones where those have no unknown neighbour left."""
        ranked = self.best(len(self._known))
        leaders = ranked[:LOCAL_AROUND]
        self._random.shuffle(leaders)
        for config in [*leaders, *ranked[LOCAL_AROUND:]]:
            beside = self._step_from(config)
            if beside is not None:
                return Candidate(beside, "neighbour")
        return None

    def _drawn(self) -> Candidate | None:
        """Any unknown config, drawn at random; None once the space seems to be used up."""
        for _ in range(DRAWS):
            mode = self._random.choice(self._space.modes)
            values = {d.name: self._random.choice(d.values) for d in self._space.dimensions_of(mode)}
            config = self._mended(Config({**values, "mode": mode}))
            if config is not None and config not in self._known:
                return Candidate(config, "random")
        return None

    def _promising(self, predict: Callable[[Config], float | None]) -> list[Config]:
        """The configs that a cost model likes best among some random ones; none where it has no opinion."""
        found: dict[Config, float] = {}
        for _ in range(PREDICTED_DRAWS):
            drawn = self._drawn()
            predicted = predict(drawn.config) if drawn is not None else None
            if drawn is None or predicted is None:
                break
            found[drawn.config] = predicted
        return sorted(found, key=lambda config: found[config])[:PREDICTED]

    def _step_from(self, config: Config) -> Config | None:
        """An unknown config that differs in one dimension by one step."""
        neighbours = self._space.neighbours(config, self._problem, self._machine)
        unknown = [other for other in neighbours if other not in self._known]
        return self._random.choice(unknown) if unknown else None


def _value(evaluation: Evaluation) -> float:
    """What is minimised: the log of the latency, so that a factor of two is the same everywhere."""
    return math.log(evaluation.latency.median) if evaluation.latency is not None else math.inf
