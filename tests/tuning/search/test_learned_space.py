"""A space learnt from trials: which parameters there are, and by which others they come and go."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from autotune.search_spaces import Space
from autotune.tuning.search.learned_space import MOST_MODES, POINTS, Grid, LearnedSpace


def trials_of(suggest: Callable[[optuna.Trial], object], count: int = 60, seed: int = 0) -> list[FrozenTrial]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    study.optimize(lambda trial: float(bool(suggest(trial))), n_trials=count)
    return study.trials


def dimensions_by_mode(space: Space) -> dict[str, set[str]]:
    return {
        mode: {d.name.removeprefix("parameter ") for d in space.dimensions_of(mode) if d.name != "mode"}
        for mode in space.modes
    }


def nested(trial: optuna.Trial) -> None:
    trial.suggest_int("size", 1, 8)
    if trial.suggest_categorical("kind", ["push", "pull"]) == "push":
        if trial.suggest_categorical("site", ["same", "side"]) == "side":
            trial.suggest_int("programs", 1, 16)
    else:
        trial.suggest_categorical("mode", ["a", "b", "c"])  # a name that our own spaces have, too


def layers(trial: optuna.Trial) -> None:
    for layer in range(trial.suggest_int("layers", 1, 3)):
        trial.suggest_int(f"width {layer}", 8, 64, step=8)


def by_threshold(trial: optuna.Trial) -> None:
    """What no other parameter explains is left out."""
    if trial.suggest_float("x", 0.0, 1.0) > 0.37:
        trial.suggest_int("sometimes", 0, 9)


@pytest.mark.parametrize(
    ("suggest", "modes"),
    [
        (nested, {"kind=0, site=0": {"size"}, "kind=0, site=1": {"size", "programs"}, "kind=1": {"size", "mode"}}),
        (layers, {f"layers={last}": {f"width {layer}" for layer in range(last + 1)} for last in range(3)}),
        (lambda trial: (trial.suggest_int("x", 0, 9), trial.suggest_float("y", 0, 1)), {"always": {"x", "y"}}),
        (by_threshold, {"always": {"x"}}),
    ],
    ids=["nested", "a number of others", "nothing depends", "unexplained"],
)
def test_parameters_that_bring_others_are_modes(
    suggest: Callable[[optuna.Trial], object], modes: dict[str, set[str]]
) -> None:
    learned = LearnedSpace(trials_of(suggest))
    assert dimensions_by_mode(learned.given.space) == modes
    assert "sometimes" not in learned.distributions


def test_where_combinations_are_too_many_only_those_that_occurred_are_modes() -> None:
    def switches(trial: optuna.Trial) -> None:
        for each in range(8):
            if trial.suggest_categorical(f"switch {each}", [False, True]):
                trial.suggest_int(f"by {each}", 0, 3)

    trials = trials_of(switches, count=30)
    learned = LearnedSpace(trials)
    assert len(learned.given.space.modes) <= len(trials) < MOST_MODES
    assert all(learned.config(trial) is not None for trial in trials)


@pytest.mark.parametrize("suggest", [nested, lambda trial: trial.suggest_float("x", 1e-5, 1e-1, log=True)])
def test_configs_and_parameters_go_to_and_fro(suggest: Callable[[optuna.Trial], Any]) -> None:
    trials = trials_of(suggest)
    learned = LearnedSpace(trials)
    configs = [learned.config(trial) for trial in trials]
    for config in random.Random(0).sample(list(learned.given.space.enumerate(*[None] * 2)), 10):  # type: ignore[list-item]
        study = optuna.create_study()
        study.enqueue_trial(learned.parameters(config))
        trial = study.ask()
        suggest(trial)
        assert learned.config(study.trials[0]) == config and trial.params == learned.parameters(config)
    assert None not in configs and len(set(configs)) > 10


def test_a_trial_of_parameters_that_are_not_known_has_no_config() -> None:
    learned = LearnedSpace(trials_of(lambda trial: trial.suggest_int("x", 0, 9)))
    for suggest in (
        lambda trial: trial.suggest_int("another", 0, 9),
        lambda trial: (trial.suggest_int("x", 0, 9), trial.suggest_int("another", 0, 9)),
        lambda trial: trial.suggest_int("x", 20, 30),
        lambda trial: None,
    ):
        [trial] = trials_of(suggest, count=1)
        assert learned.config(trial) is None


def test_steps_that_differ_from_branch_to_branch_are_united_too() -> None:
    """Tiles of 16 to 128 in steps of 16, or of 32 to 256 in steps of 32; the last one of either keeps its place."""

    def stepped(trial: optuna.Trial) -> None:
        small = trial.suggest_categorical("small", [True, False])
        trial.suggest_int("tile", *((16, 128) if small else (32, 256)), step=16 if small else 32)
        trial.suggest_int("shifted", *((0, 10) if small else (3, 13)), step=5)
        trial.suggest_float("share", *((0.0, 1.0) if small else (0.1, 0.5)), step=0.25 if small else 0.2)
        trial.suggest_float("longer", 0.0, 0.5 if small else 1.0, step=0.25)

    trials = trials_of(stepped)
    learned = LearnedSpace(trials)
    assert learned.distributions == {
        "small": CategoricalDistribution((True, False)), "tile": IntDistribution(16, 256, step=16),
        "shifted": IntDistribution(0, 13), "share": FloatDistribution(0.0, 1.0),
        "longer": FloatDistribution(0.0, 1.0, step=0.25),
    }  # fmt: skip
    assert all(learned.config(trial) is not None for trial in trials)


def test_grids() -> None:
    assert Grid(IntDistribution(3, 9, step=2)).values == (3, 5, 7, 9)
    tenths = Grid(FloatDistribution(0.0, 0.3, step=0.1)).values
    assert tenths == pytest.approx((0.0, 0.1, 0.2, 0.3)) and tenths[-1] == 0.3, "within the range"
    assert Grid(IntDistribution(5, 5)).values == (5,) and Grid(FloatDistribution(0.5, 0.5)).values == (0.5,)
    assert Grid(CategoricalDistribution((None, "a", 1.5))).values == (None, "a", 1.5)
    many = Grid(IntDistribution(0, 10**6)).values
    assert len(many) == POINTS and many[0] == 0 and many[-1] == 10**6
    log = Grid(FloatDistribution(1e-4, 1.0, log=True)).values
    assert len(log) == POINTS and log[16] == pytest.approx(1e-2)
    powers = Grid(IntDistribution(1, 1024, log=True)).values
    assert powers[0] == 1 and powers[-1] == 1024 and list(powers) == sorted(set(powers))
    assert math.isclose(powers[len(powers) // 2 + 1] / powers[len(powers) // 2], powers[-1] / powers[-2], rel_tol=0.2)
