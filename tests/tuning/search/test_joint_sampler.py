"""The sampler as Optuna sees it: in studies that are not ours, in those of a space that is given, in storages."""

from __future__ import annotations

import math
import pickle
import statistics
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState
from small_space import BEST, BSP, TASK, WORKLOAD, time_of

from autotune.config import Config
from autotune.search_spaces import Space, choices, numbers
from autotune.tuning import Given, JointSampler

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "examples"))
from optuna_study import found, sort

PRUNED = TrialState.PRUNED


def test_in_a_study_that_is_not_ours_it_is_far_ahead_of_chance() -> None:
    seeds = range(4)
    joint = [found(JointSampler(seed), 40) for seed in seeds]
    chance = [found(RandomSampler(seed=seed), 40) for seed in seeds]
    assert max(joint) < min(chance) and statistics.mean(joint) < 75 < 90 < statistics.mean(chance)
    assert statistics.mean(joint) < statistics.mean(found(RandomSampler(seed=seed), 160) for seed in seeds)
    assert statistics.mean(joint) < statistics.mean(found(TPESampler(seed=seed), 40) for seed in seeds)


def test_what_is_to_be_maximised_is_and_the_unit_does_not_matter() -> None:
    proposed = []
    for sign, unit in ((1, 1.0), (-1, 1.0), (1, 1e-6), (1, 1e6)):
        study = optuna.create_study(sampler=JointSampler(0), direction="minimize" if sign > 0 else "maximize")
        study.optimize(lambda trial, factor=sign * unit: factor * sort(trial), n_trials=30)  # type: ignore[misc]
        proposed.append([trial.params for trial in study.trials])
    assert proposed[0] == proposed[1] == proposed[2] == proposed[3]


@pytest.mark.parametrize("name", [None, "sort"])
def test_the_same_seed_gives_the_same_trials_and_a_sampler_goes_from_study_to_study(name: str | None) -> None:
    """To one that is made anew under the name of the last one, too."""
    sampler, trials = JointSampler(3), []
    for _ in range(2):
        study = optuna.create_study(study_name=name, sampler=sampler)
        study.optimize(sort, n_trials=25)
        trials.append([trial.params for trial in study.trials])
    other = optuna.create_study(sampler=JointSampler(4))
    other.optimize(sort, n_trials=25)
    assert trials[0] == trials[1] != [trial.params for trial in other.trials]


def test_logarithms_are_of_positive_values_minimised_or_maximised() -> None:
    proposed = []
    for sign, direction in ((1, "minimize"), (-1, "maximize")):
        study = optuna.create_study(sampler=JointSampler(0, logarithmic=True), direction=direction)
        study.optimize(lambda trial, power=sign: sort(trial) ** power, n_trials=30)  # type: ignore[misc]
        proposed.append([trial.params for trial in study.trials])
    assert proposed[0] == proposed[1]
    study = optuna.create_study(sampler=JointSampler(0, logarithmic=True))
    with pytest.raises(ValueError, match="positive"):
        study.optimize(lambda trial: 0 * trial.suggest_int("x", 0, 9), n_trials=8)


def test_another_sampler_goes_on_with_a_study_in_a_storage() -> None:
    """What it proposes is near what was good, and new: all it knows is what the storage has."""
    storage = InMemoryStorage()
    optuna.create_study(storage=storage, study_name="sort", sampler=JointSampler(0)).optimize(sort, n_trials=30)
    study = optuna.load_study(storage=storage, study_name="sort", sampler=JointSampler(1))
    study.optimize(sort, n_trials=10)
    before, after = study.trials[:30], study.trials[30:]
    assert {trial.params["kind"] for trial in after} <= {"radix", "merge"}
    assert not any(new.params == old.params for new in after for old in before)
    values = [trial.value for trial in after if trial.value is not None]
    assert statistics.mean(values) < statistics.mean(trial.value for trial in before if trial.value is not None)


def test_threads_share_a_sampler() -> None:
    """What they find depends on who is faster, so nothing is said of it here."""
    study = optuna.create_study(sampler=JointSampler(0))
    study.optimize(sort, n_trials=48, n_jobs=4)
    assert len(study.trials) == 48 and all(trial.state in (TrialState.COMPLETE, PRUNED) for trial in study.trials)


def told_in_turn(study: optuna.Study, ahead: int, trials: int) -> float:
    """The least that is found where ``ahead`` trials are always under way: those of as many equally fast threads."""
    under_way: list[optuna.trial.Trial] = []
    for _ in range(trials):
        if len(under_way) == ahead:
            trial = under_way.pop(0)
            try:
                study.tell(trial, sort(trial))
            except optuna.TrialPruned:
                study.tell(trial, state=PRUNED)
        under_way.append(study.ask())
    return study.best_value


def test_with_trials_under_way_it_learns_from_all_that_were_told() -> None:
    seeds = range(4)
    joint = [told_in_turn(optuna.create_study(sampler=JointSampler(seed)), 4, 48) for seed in seeds]
    chance = [told_in_turn(optuna.create_study(sampler=RandomSampler(seed=seed)), 4, 48) for seed in seeds]
    assert statistics.mean(joint) < 80 < 90 < statistics.mean(chance)


def test_a_trial_gets_no_parameter_that_it_did_not_ask_for() -> None:
    """Between the two questions of a trial, another thread may tell of a space with more parameters."""

    def first(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("kind", ["a", "b"]) == "b":
            raise ArithmeticError
        return 200 + trial.suggest_int("x", 0, 99)

    def both(trial: optuna.Trial) -> float:
        a = trial.suggest_categorical("kind", ["a", "b"]) == "a"
        return 200 + trial.suggest_int("x", 0, 99) if a else trial.suggest_int("y", 0, 9)

    sampler = JointSampler(0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(first, n_trials=20, catch=ArithmeticError)
    late = study.ask()
    inferred = sampler.infer_relative_search_space(study, late)
    study.enqueue_trial({"kind": "b", "y": 3})
    study.optimize(both, n_trials=4)
    assert set(inferred) == {"kind", "x"} < set(sampler.infer_relative_search_space(study, late))
    sampled = [set(sampler.sample_relative(study, study.ask(), inferred)) for _ in range(8)]
    assert {"kind"} in sampled and all(names <= {"kind", "x"} for names in sampled)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_what_a_wrapper_fixes_stays_fixed_and_the_rest_is_searched() -> None:
    study = optuna.create_study(sampler=PartialFixedSampler({"kind": "radix"}, JointSampler(0)))
    study.optimize(sort, n_trials=36)
    assert {trial.params["kind"] for trial in study.trials} == {"radix"}
    first, last = (
        statistics.mean(trial.value or 200 for trial in part) for part in (study.trials[:12], study.trials[24:])
    )
    assert last < first


def test_it_can_be_pickled_in_the_midst_of_a_study() -> None:
    sampler = JointSampler(0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sort, n_trials=20)
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.proposer.best() == sampler.proposer.best() and copy.proposer.best()


def test_a_study_of_several_objectives_is_refused() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=JointSampler(0))
    with pytest.raises(ValueError, match="one objective"):
        study.ask().suggest_int("x", 0, 3)


def test_values_that_are_no_numbers_count_as_failures() -> None:
    def often_infinite(trial: optuna.Trial) -> float:
        x = trial.suggest_int("x", 0, 32)
        return math.inf if x > 16 else float(abs(x - 9))

    study = optuna.create_study(sampler=JointSampler(0, logarithmic=False))
    study.optimize(often_infinite, n_trials=24)
    assert study.best_value == 0 and sum(trial.value == math.inf for trial in study.trials[12:]) < 4


def given(space: Space = WORKLOAD.space, **more: object) -> Given:
    return Given(space, TASK, **more).narrowed  # type: ignore[arg-type]


def config_of(study: optuna.Study, known: Given) -> tuple[optuna.Trial, Config]:
    trial = study.ask()
    return trial, known.space.suggest(trial)


def test_of_a_space_that_is_given_it_proposes_what_is_valid_none_twice_until_it_is_used_up() -> None:
    """And where somebody asks all the same, there is an answer still."""
    known = given(first=WORKLOAD.first_configs(TASK), reserved=[BSP])
    sampler = JointSampler(0, known)
    study = optuna.create_study(sampler=sampler)
    seen = []
    while sampler.ready(study):
        trial, config = config_of(study, known)
        seen.append(config)
        study.tell(trial, time_of(config))
    assert {*seen, BSP} == set(WORKLOAD.space.enumerate(TASK)) and len(set(seen)) == len(seen)
    assert BSP not in seen, "reserved"
    assert seen[0] == WORKLOAD.first_configs(TASK)[0] and sampler.proposer.best(1) == [BEST]
    trial, config = config_of(study, known)
    assert "mode" in config
    study.tell(trial, 1.0)


def test_a_trial_that_somebody_else_has_under_way_is_not_proposed_again() -> None:
    known = given()
    storage = InMemoryStorage()
    names = {"storage": storage, "study_name": "shared"}
    mine = optuna.create_study(sampler=JointSampler(0, known), **names)
    theirs = optuna.load_study(sampler=JointSampler(0, known), **names)
    taken = [config_of(study, known)[1] for _ in range(12) for study in (mine, theirs)]
    assert len(set(taken)) == 24


def test_an_enqueued_trial_is_learnt_from_and_what_it_stood_in_for_is_not_lost() -> None:
    known = given()
    sampler = JointSampler(0, known, logarithmic=True)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(dict(known.space.parameters(BEST)))
    trial, config = config_of(study, known)
    assert config == BEST
    study.tell(trial, 200.0)
    assert sampler.proposer.best() == [BEST] and sampler.proposer.value(BEST) == math.log(200.0)
    everything = {BEST}
    while sampler.ready(study):
        trial, config = config_of(study, known)
        everything.add(config)
        study.tell(trial, 300.0)
    assert everything == set(WORKLOAD.space.enumerate(TASK))


def test_a_constraint_is_violated_above_0_and_its_value_then_counts_for_nothing() -> None:
    sampler = JointSampler(0, given())
    study = optuna.create_study(sampler=sampler)
    kept = []
    for violation, value in ((0.0, 7.0), (1.0, 1.0), (-1.0, 8.0)):
        trial, config = config_of(study, given())
        trial.set_constraint("works", violation)
        study.tell(trial, value)
        kept += [config] if violation <= 0 else []
        assert sampler.proposer.value(config) == (value if violation <= 0 else math.inf)
    assert sampler.proposer.best() == kept


def test_a_first_config_that_the_space_does_not_hold_is_not_tried() -> None:
    """As where a recorded space leaves out the default's values."""
    elsewhere = [BEST.replace(tile=3), BEST.replace(mode="pull"), Config({"mode": "push", "tile": 64}), BEST]
    known = given(first=elsewhere)
    assert config_of(optuna.create_study(sampler=JointSampler(0, known)), known)[1] == BEST


def test_a_space_of_one_config_is_used_up_after_one_trial() -> None:
    """Optuna asks no sampler where each parameter has one value."""
    nothing: Any = None  # no constraint looks at it
    given = Given(Space(choices("mode", "push"), numbers("block", 16)), nothing)
    for asks in (True, False):
        sampler = JointSampler(0, given)
        study = optuna.create_study(sampler=sampler)
        count = 0
        while sampler.ready(study) and count < 3:
            trial = study.ask()
            assert dict(given.space.suggest(trial)) == {"mode": "push", "block": 16}
            assert not asks or sampler.source(trial.number)
            study.tell(trial, 1.0)
            count += 1
        assert count == 1
