"""The search: which config next. Steps from the best that a surrogate expects most of, and Optuna's TPE beside them."""

from __future__ import annotations

import math
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import optuna

from autotune.config import Config
from autotune.machine import Machine
from autotune.outcome import DEFAULT_REGIME, Evaluation, Outcome, Regime
from autotune.problem import Problem
from autotune.search_spaces import Space
from autotune.tuning.search.surrogate import Surrogate

GUIDED_FROM = 8
"""Measured configs from which on the surrogate is asked; before, the sampler draws at random."""

GUIDED_SHARE = 0.9
"""Of the configs after that. The rest are the sampler's: an opinion of its own where the surrogate is wrong."""

LEADERS = 3
"""How many of the best are stepped away from."""

WALKS = 150
"""Configs a few steps from one of them, among which the surrogate chooses besides, …"""

MOST_STEPS = 4
"""… as many as this; …"""

STRANGERS = 10
"""… and configs from anywhere: few valleys of a joint space are left by one step."""

NEAR = 1.05
"""A mode is near whose best takes less than so many times the fastest of all. Its best goes to the finals: 20 ms of a
search rank modes that draw much power too well, by 3 % in all-gather + GEMM at m=8192 on four H200."""

NEAR_SHARE = 0.3
"""Of the surrogate's proposals: they stay in a mode that is near, not the fastest's, to gain on its best."""

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
        predict: Callable[[Config], float | None] = lambda config: None, regime: Regime = DEFAULT_REGIME,
    ) -> None:  # fmt: skip
        """``first`` are tried before the sampler is asked; ``on_invalid`` gets what it proposes in vain.

        Then come the best of some random configs by ``predict``, a cost model's microseconds or None; the surrogate
        learns how far it bears out.
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
        self._surrogate = Surrogate(self._space, predict)
        self._steps = {
            mode: [
                (d.name, {value: tuple(d.neighbours(value)) for value in d.values})
                for d in self._space.dimensions_of(mode)
                if d.name != "mode" and len(d.values) > 1
            ]
            for mode in self._space.modes
        }
        """The dimensions in which there is a step to take, by mode, and from each value where to."""
        self._first = deque(first)
        self._known = set(reserved)
        """What is not proposed any more: asked for, told, reserved, or invalid."""
        self._measured: dict[Config, float] = {}
        """The log of the latency: a factor of two is the same everywhere."""
        self._failed: list[Config] = []
        self._pending: dict[Config, None] = {}
        self._neighbours: dict[Config, list[Config]] = {}
        self._on_invalid = on_invalid
        self._regime = regime
        self._first.extend(self._promising(predict))

    def remember(self, config: Config, evaluation: Evaluation) -> None:
        """Take in an evaluation that the search did not ask for: of an earlier run, a baseline."""
        if config in self._measured:
            return
        self._known.add(config)
        try:
            parameters, distributions = self._space.parameters(config), self._space.distributions(config)
        except (KeyError, StopIteration):
            return  # a config of a space that has changed since
        value = self._learn(config, evaluation)
        state = optuna.trial.TrialState.PRUNED if value is None else optuna.trial.TrialState.COMPLETE
        constraints = {"works": 1.0 if value is None else -1.0}
        self._study.add_trial(
            optuna.trial.create_trial(
                params=parameters, distributions=distributions, value=value, state=state, constraints=constraints
            )
        )

    def ask(self) -> Candidate | None:
        """The next config, never one that was asked for before; None where nothing new could be found."""
        while self._first:
            config = self._first.popleft()
            if config not in self._known:
                return self._claim(Candidate(config, "first"))
        guided = len(self._measured) >= GUIDED_FROM and self._random.random() < GUIDED_SHARE
        candidate = (self._guided() if guided else None) or self._sampled() or self._guided() or self._drawn()
        return self._claim(candidate) if candidate is not None else None

    def tell(self, candidate: Candidate, evaluation: Evaluation) -> None:
        """How a candidate ended."""
        self._pending.pop(candidate.config, None)
        if candidate.trial is None:
            self.remember(candidate.config, evaluation)
        else:
            self._finish(candidate.trial, self._learn(candidate.config, evaluation))

    def best(self, count: int) -> list[Config]:
        """The fastest configs known, fastest first."""
        return sorted(self._measured, key=lambda config: self._measured[config])[:count]

    def best_of_modes(self) -> list[Config]:
        """The fastest config known of each mode that is near, the fastest of all among them."""
        ranked = self.best(len(self._measured))
        fastest = {config["mode"]: config for config in reversed(ranked)}
        limit = self.latency(ranked[0]) * NEAR if ranked else 0.0
        return [config for config in fastest.values() if self.latency(config) < limit]

    def latency(self, config: Config) -> float:
        """Microseconds that a config was found to take, infinite where it was not measured."""
        return math.exp(self._measured.get(config, math.inf))

    def _claim(self, candidate: Candidate) -> Candidate:
        self._known.add(candidate.config)
        self._pending[candidate.config] = None
        return candidate

    def _learn(self, config: Config, evaluation: Evaluation) -> float | None:
        """Keep how a config ended: the log of its latency, None where it has none."""
        if evaluation.latency is not None:
            self._measured[config] = math.log(evaluation.latency.of(self._regime))
        elif evaluation.outcome is not Outcome.INVALID:
            self._failed.append(config)
        return self._measured.get(config)

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
                self._finish(trial, None)
                if config not in self._known:
                    self._known.add(config)
                    self._on_invalid(config, Evaluation(Outcome.INVALID, violation))
                beside = self._mended(config)
            else:
                beside = self._step_from(config)
                if beside is None:
                    # Nothing new around it, as in a mode of two configs: else the sampler would dwell there for ever.
                    self._finish(trial, None)
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

    def _finish(self, trial: optuna.Trial, value: float | None) -> None:
        # PRUNED with a violated constraint: the samplers learn from that; they never see FAIL.
        trial.set_constraint("works", 1.0 if value is None else -1.0)
        if value is None:
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial, value)

    def _guided(self) -> Candidate | None:
        """What the surrogate expects most of: one step or a few from the best, or a stranger."""
        near = self._near_mode() if self._random.random() < NEAR_SHARE else {}
        for measured in (near, self._measured):
            pool = self._pool(measured)
            if pool:
                chosen = self._surrogate.most_promising(pool, measured, self._failed, list(self._pending))
                return Candidate(chosen, "surrogate")
        return None

    def _near_mode(self) -> dict[Config, float]:
        """What was measured in one mode that is near and not the fastest's; empty where there is none."""
        others = [config["mode"] for config in self.best_of_modes() if config["mode"] != self.best(1)[0]["mode"]]
        mode = self._random.choice(others) if others else None
        return {config: value for config, value in self._measured.items() if config["mode"] == mode}

    def _pool(self, measured: Mapping[Config, float]) -> list[Config]:
        """Unknown configs a step or a few from the best of these; of all that was measured, strangers too."""
        ranked = sorted(measured, key=lambda config: measured[config])
        pool: dict[Config, None] = {}
        for number, leader in enumerate(ranked):
            if number >= LEADERS and pool:
                break  # beyond them only where they have nothing new beside them
            pool.update((other, None) for other in self._beside(leader) if other not in self._known)
        for _ in range(WALKS if ranked else 0):
            walked = self._walked(self._random.choice(ranked[:LEADERS]))
            if walked not in self._known and self._space.broken(walked, self._problem, self._machine) is None:
                pool[walked] = None
        if measured is self._measured and ranked:
            pool.update((drawn.config, None) for _ in range(STRANGERS) if (drawn := self._drawn()) is not None)
        return list(pool)

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

    def _walked(self, config: Config) -> Config:
        """A config some steps away, each in a dimension drawn at random; valid or not."""
        steps = self._steps[str(config["mode"])]
        values = dict(config)
        for _ in range(self._random.randint(2, MOST_STEPS) if steps else 0):
            name, beside = self._random.choice(steps)
            values[name] = self._random.choice(beside[values[name]])
        return Config(values)

    def _step_from(self, config: Config) -> Config | None:
        """An unknown config that differs in one dimension by one step."""
        unknown = [other for other in self._beside(config) if other not in self._known]
        return self._random.choice(unknown) if unknown else None

    def _beside(self, config: Config) -> list[Config]:
        """All configs that differ in one dimension by one step."""
        if config not in self._neighbours:
            self._neighbours[config] = list(self._space.neighbours(config, self._problem, self._machine))
        return self._neighbours[config]
