"""The proposer: which config next. Steps from the best that a surrogate expects most of, and now and then TPE's."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna

from autotune.config import Config, Value
from autotune.outcome import Evaluation, Outcome
from autotune.search_spaces import Space
from autotune.task import Task
from autotune.tuning.search.surrogate import Surrogate
from autotune.tuning.search.tpe import Tpe

GUIDED_FROM = 8
"""Measured configs from which on the surrogate is asked; before, the sampler draws at random."""

GUIDED_SHARE = 0.9
"""Share of later configs that the surrogate proposes; the sampler's are independent of its errors."""

STEPPED_FROM = 3
"""Configs, the best, that are stepped away from."""

WALKS = 150
"""Configs a few steps from one of them, among which the surrogate chooses besides, …"""

MOST_STEPS = 4
"""… as many as this; …"""

DRAWN_ANYWHERE = 10
"""… and configs from anywhere: few valleys of a joint space are left by one step."""

NEAR = 1.05
"""A mode is near whose best takes less than this many times the fastest of all. Its best goes to the finals: 20 ms of a
search rank modes that draw much power too well, by 3 % in all-gather + GEMM at m=8192 on four H200."""

NEAR_SHARE = 0.3
"""Share of the surrogate's proposals that stay in a mode that is near, not the fastest's, to gain on its best."""

WORTH_A_TRIAL = 0.005
"""Improvement, of a logarithm, that is worth a trial, or many."""

PREDICTED = 4
"""Configs that the cost model adds to the first ones, …"""

PREDICTED_DRAWS = 100
"""… chosen among this many random ones."""

MENDING_STEPS = 60

DRAWS = 200
"""Random configs tried before the space is taken to be used up."""

TRIES = 3
"""Proposals of the sampler, with what lies beside them, before a step from one of the best is taken instead."""


def no_prediction(config: Config) -> float | None:
    return None


def unheard(config: Config, evaluation: Evaluation) -> None:
    """Ignore what was refused."""


@dataclass(frozen=True)
class Given:
    """Everything that is known of a search before it begins."""

    space: Space
    task: Task[Any]
    first: Sequence[Config] = ()
    """Tried before anything else; those that the space does not hold are not."""
    reserved: Collection[Config] = ()
    """Never proposed: the caller evaluates them in any case, and tells."""
    predict: Callable[[Config], float | None] = no_prediction
    """A cost model's microseconds. The best of some random configs by it follow the first ones, and the surrogate
    learns how far it bears out."""
    on_invalid: Callable[[Config, Evaluation], None] = unheard
    """Gets what TPE proposes in vain."""

    @property
    def narrowed(self) -> Given:
        """A copy whose space has living values only: TPE then proposes far less in vain."""
        return replace(self, space=self.space.narrowed(self.task))


@dataclass(frozen=True)
class Candidate:
    """A config to evaluate, and who proposed it."""

    config: Config
    source: str
    trial: optuna.Trial | None = None
    """The Optuna trial to tell, where the search's study was asked."""


class Proposer:
    """``propose`` configs, ``learn`` how they ended. Smaller values are better."""

    def __init__(self, given: Given, draw: random.Random, seed: int | None, logarithmic: bool) -> None:
        """Takes the space as it is. ``logarithmic`` says that the values it learns are logarithms, whose differences
        mean the same everywhere; others are measured by their own spread.
        """
        self._space, self._task = given.space, given.task
        self._random, self._logarithmic = draw, logarithmic
        self._second_opinion = Tpe(given.space, seed)
        self._surrogate = Surrogate(given.space, given.predict)
        self.in_vain = 0
        """Favourites of the surrogate in a row of which less than WORTH_A_TRIAL was expected."""
        self.stale = 0
        """Configs measured in a row that together gained less than WORTH_A_TRIAL."""
        self._reference = math.inf
        """The best value when there was last a gain."""
        self._broken = given.space.memoized(given.task)
        self._steps = {
            mode: [
                (d.name, {value: tuple(d.neighbours(value)) for value in d.values})
                for d in self._space.dimensions_of(mode)
                if d.name != "mode" and len(d.values) > 1
            ]
            for mode in self._space.modes
        }
        """The dimensions in which there is a step to take, by mode, and from each value where to."""
        self._first = deque(config for config in given.first if given.space.holds(config))
        self._known = set(given.reserved)
        """Configs that are not proposed any more: proposed, learnt of, reserved, or invalid."""
        self._measured: dict[Config, float] = {}
        self._failed: list[Config] = []
        self._pending: dict[Config, None] = {}
        self._neighbours: dict[Config, list[Config]] = {}
        self._on_invalid = given.on_invalid
        self._first.extend(self._promising(given.predict))

    def propose(self, elsewhere: Collection[Config] = ()) -> Candidate | None:
        """The next config, never one that was proposed before; None where nothing new could be found.

        ``elsewhere`` are configs that others have under way.
        """
        self._known.update(elsewhere)
        pending = [*self._pending, *(config for config in elsewhere if config not in self._pending)]
        while self._first:
            config = self._first.popleft()
            if config not in self._known:
                return self._claim(Candidate(config, "first"))
        guided = len(self._measured) >= GUIDED_FROM and self._random.random() < GUIDED_SHARE
        proposal = self._guided(pending) if guided else None
        proposal = proposal or self._sampled() or self._guided(pending) or self._drawn()
        return self._claim(proposal) if proposal is not None else None

    def learn(self, config: Config, value: float | None, refused: bool = False) -> None:
        """Learn how a config of the space ended, whoever proposed it: its value, None where it failed.

        What was ``refused`` unrun says nothing about its neighbours: only TPE hears of it.
        """
        self._pending.pop(config, None)
        self._known.add(config)
        if config in self._measured:
            return
        if value is not None:
            self._measured[config] = value
            gained = value < self._reference - (WORTH_A_TRIAL if self._logarithmic else 0)
            self.stale, self._reference = (0, value) if gained else (self.stale + 1, self._reference)
        elif not refused:
            self._failed.append(config)
        self._second_opinion.learn(config, value)

    def release(self, config: Config, again: bool) -> None:
        """Nothing will be learnt of a proposal; it may be made ``again`` or not."""
        self._pending.pop(config, None)
        self._second_opinion.forget(config)
        if again:
            self._known.discard(config)

    @property
    def measured(self) -> int:
        """Number of configs with a value."""
        return len(self._measured)

    def value(self, config: Config) -> float:
        """A config's measured value, infinite where there is none."""
        return self._measured.get(config, math.inf)

    def best(self, count: int | None = None) -> list[Config]:
        """The best configs known, the best first."""
        return sorted(self._measured, key=lambda config: self._measured[config])[:count]

    def best_of_modes(self) -> list[Config]:
        """The best config known of each mode that is near, the best of all among them."""
        ranked = self.best()
        bests = {config["mode"]: config for config in reversed(ranked)}
        return [config for config in bests.values() if self._measured[config] < self._near(self._measured[ranked[0]])]

    def _near(self, best: float) -> float:
        return best + (math.log(NEAR) if self._logarithmic else (NEAR - 1) * abs(best))

    def _claim(self, proposal: Candidate) -> Candidate:
        self._known.add(proposal.config)
        self._pending[proposal.config] = None
        return proposal

    def _sampled(self) -> Candidate | None:
        """A proposal of TPE's; where that is invalid or known, a config next to it that is neither.

        Asking TPE again instead would cost some 50 ms each time, and once converged it repeats itself.
        """
        for _ in range(TRIES):
            config, trial = self._second_opinion.ask()
            violation = self._space.violation(config, self._task)
            if violation is None and config not in self._known:
                self._second_opinion.take(config, trial)
                return Candidate(config, "sampler")
            if violation is not None:
                self._second_opinion.refuse(trial)
                if config not in self._known:
                    self._known.add(config)
                    self._on_invalid(config, Evaluation(Outcome.INVALID, violation))
                beside = self._mended(config)
            else:
                beside = self._step_from(config)
                if beside is None:
                    # Nothing new around it, as in a mode of two configs: else TPE would dwell there for ever.
                    self._second_opinion.refuse(trial)
                else:
                    self._second_opinion.drop(trial)
            if beside is not None and beside not in self._known:
                return Candidate(beside, "sampler")
        return None

    def _mended(self, values: Mapping[str, Value]) -> Config | None:
        """A valid config near an invalid one: dimensions of broken constraints are drawn anew until none is broken.

        A proposal of the sampler costs some 50 ms, this costs one.
        """
        mended = dict(values)
        for _ in range(MENDING_STEPS):
            broken = self._broken(mended)
            if broken is None:
                return Config(mended)
            changeable = [name for name in broken.uses if name != "mode"]
            if not changeable:
                return None
            name = self._random.choice(changeable)
            mended[name] = self._random.choice(self._space.dimensions[name].values)
        return None

    def _guided(self, pending: Sequence[Config]) -> Candidate | None:
        """The surrogate's favourite: one step or a few from the best, or a draw from anywhere."""
        near = self._near_mode() if self._random.random() < NEAR_SHARE else {}
        for measured in (near, self._measured):
            pool = self._pool(measured)
            if pool:
                targets = measured if self._logarithmic else _by_their_spread(measured)
                favourite = self._surrogate.most_promising(pool, targets, self._failed, pending)
                self.in_vain = self.in_vain + 1 if self._surrogate.expected < WORTH_A_TRIAL else 0
                return Candidate(favourite, "surrogate")
        return None

    def _near_mode(self) -> dict[Config, float]:
        """The measured configs of one mode that is near and not the fastest's; empty where there is none."""
        others = [config["mode"] for config in self.best_of_modes() if config["mode"] != self.best(1)[0]["mode"]]
        mode = self._random.choice(others) if others else None
        return {config: value for config, value in self._measured.items() if config["mode"] == mode}

    def _pool(self, measured: Mapping[Config, float]) -> list[Config]:
        """Unknown configs a step or a few from the best of these; of all that was measured, draws from anywhere too."""
        ranked = sorted(measured, key=lambda config: measured[config])
        pool: dict[Config, None] = {}
        for number, leader in enumerate(ranked):
            if number >= STEPPED_FROM and pool:
                break  # beyond them only where they have nothing new beside them
            pool.update((other, None) for other in self._beside(leader) if other not in self._known)
        for _ in range(WALKS if ranked else 0):
            values = self._walked(self._random.choice(ranked[:STEPPED_FROM]))
            # As plain values, for most break a constraint, and to make a config takes longer than to see that.
            if self._broken(values) is None:
                walked = Config(values)
                if walked not in self._known:
                    pool[walked] = None
        if measured is self._measured and ranked:
            drawn = iter(self._drawn_anywhere, None)  # ends once the space seems to be used up
            pool.update((config, None) for config in itertools.islice(drawn, DRAWN_ANYWHERE))
        return list(pool)

    def _drawn(self) -> Candidate | None:
        drawn = self._drawn_anywhere()
        return Candidate(drawn, "random") if drawn is not None else None

    def _drawn_anywhere(self) -> Config | None:
        """Any unknown config, drawn at random; None once the space seems to be used up."""
        for _ in range(DRAWS):
            mode = self._random.choice(self._space.modes)
            values = {d.name: self._random.choice(d.values) for d in self._space.dimensions_of(mode)}
            config = self._mended({**values, "mode": mode})
            if config is not None and config not in self._known:
                return config
        return None

    def _promising(self, predict: Callable[[Config], float | None]) -> list[Config]:
        """The configs that a cost model likes best among some random ones; none where it has no opinion."""
        found: dict[Config, float] = {}
        for _ in range(PREDICTED_DRAWS):
            drawn = self._drawn_anywhere()
            predicted = predict(drawn) if drawn is not None else None
            if drawn is None or predicted is None:
                break
            found[drawn] = predicted
        return sorted(found, key=lambda config: found[config])[:PREDICTED]

    def _walked(self, config: Config) -> dict[str, Value]:
        """The values of a config some steps away, each in a dimension drawn at random; valid or not."""
        steps = self._steps[str(config["mode"])]
        values = dict(config)
        for _ in range(self._random.randint(2, MOST_STEPS) if steps else 0):
            name, beside = self._random.choice(steps)
            values[name] = self._random.choice(beside[values[name]])
        return values

    def _step_from(self, config: Config) -> Config | None:
        """An unknown config that differs in one dimension by one step."""
        unknown = [other for other in self._beside(config) if other not in self._known]
        return self._random.choice(unknown) if unknown else None

    def _beside(self, config: Config) -> list[Config]:
        """All configs that differ in one dimension by one step."""
        if config not in self._neighbours:
            self._neighbours[config] = list(self._space.neighbours(config, self._task))
        return self._neighbours[config]


def _by_their_spread(measured: Mapping[Config, float]) -> dict[Config, float]:
    """Values of any unit in units of their own deviation; as they are where they do not differ."""
    spread = statistics.pstdev(measured.values()) or 1.0
    return {config: value / spread for config, value in measured.items()}
