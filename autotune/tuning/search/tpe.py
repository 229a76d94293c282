"""A second opinion: Optuna's TPE over the same space, with a study in memory that nobody else looks at."""

from __future__ import annotations

import warnings

import optuna
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.search_spaces import Space

STARTUP = 8
"""Configs that TPE draws at random before it has a model."""


class Tpe:
    """TPE has a study of its own: there it gets dimensions by index, whatever form the caller's study has them in, and
    results in the order in which they come, which is not the order in which they were asked for.
    """

    def __init__(self, space: Space, seed: int | None) -> None:
        """The space's constraints are the caller's."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        # Multivariate by group: the dimensions depend on the mode.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # ``group``
            sampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=STARTUP,
                n_ei_candidates=48,
            )  # fmt: skip
        self._study = optuna.create_study(sampler=sampler)
        self._taken: dict[Config, optuna.Trial] = {}

    def ask(self) -> tuple[Config, optuna.Trial]:
        """A config, valid or not, known or not; then ``take``, ``refuse`` or ``drop`` its trial."""
        trial = self._study.ask()
        return self._space.suggest(trial), trial

    def take(self, config: Config, trial: optuna.Trial) -> None:
        """The config is going to be evaluated; ``learn`` ends the trial."""
        self._taken[config] = trial

    def refuse(self, trial: optuna.Trial) -> None:
        """The config is invalid, or leads nowhere."""
        self._finish(trial, None)

    def drop(self, trial: optuna.Trial) -> None:
        """The config taught nothing new."""
        self._study.tell(trial, state=TrialState.FAIL)  # which samplers never see

    def forget(self, config: Config) -> None:
        """Nothing will be learnt of a config; it need not be one that was taken."""
        trial = self._taken.pop(config, None)
        if trial is not None:
            self.drop(trial)

    def learn(self, config: Config, value: float | None) -> None:
        """The value of a config, whoever proposed it; None where it failed."""
        trial = self._taken.pop(config, None)
        if trial is not None:
            self._finish(trial, value)
            return
        self._study.add_trial(ended(self._space, config, value, {"works": _violation(value)}))

    def _finish(self, trial: optuna.Trial, value: float | None) -> None:
        # PRUNED with a violated constraint: TPE learns from that.
        trial.set_constraint("works", _violation(value))
        self._study.tell(trial, value, TrialState.PRUNED if value is None else None)


def ended(space: Space, config: Config, value: float | None, constraints: dict[str, float]) -> FrozenTrial:
    """A trial that no study was asked for; without a value it is pruned."""
    return optuna.trial.create_trial(
        params=space.parameters(config), distributions=space.distributions(config), value=value,
        state=TrialState.PRUNED if value is None else TrialState.COMPLETE, constraints=constraints,
    )  # fmt: skip


def _violation(value: float | None) -> float:
    return 1.0 if value is None else -1.0
