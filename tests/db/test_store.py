"""Studies and their trials through the store's door, the keys that tell studies apart, and the store's speed."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from python_calls import python_calls
from sample import KEY, PROVENANCE, TRIAL, WINNER
from sqlalchemy import URL
from studies import as_text, begin, just_now

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, TrialRecord
from autotune.errors import StoreError
from autotune.outcome import Evaluation, Outcome


def test_a_new_study_holds_what_it_was_given_and_is_found_by_it(store: Store) -> None:
    study = begin(store)
    assert (study.key, study.provenance, study.seed, study.space_size) == (KEY, PROVENANCE, 11, 5832)
    assert (study.state, study.winner) == ("running", None)
    assert just_now(study.created_at)
    assert store.studies() == [study]
    assert store.study(KEY, PROVENANCE, seed=99, space_size=1) == study


@pytest.mark.parametrize(
    ("of", "field"),
    [(of, each.name) for of in (CacheKey, Provenance) for each in dataclasses.fields(of) if each.name != "problem"],
)
def test_every_field_of_key_and_provenance_makes_another_study(store: Store, study: int, of: type, field: str) -> None:
    changed: dict[str, Any] = {field: {"world_size": 4, "regime": "graph"}.get(field, "other")}
    others = [dataclasses.replace(each, **changed) if isinstance(each, of) else each for each in (KEY, PROVENANCE)]
    assert begin(store, *others).id != study


def test_a_seed_beyond_64_bits_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="seed"):
        store.study(KEY, PROVENANCE, seed=2**63, space_size=1)
    assert store.study(KEY, PROVENANCE, seed=-(2**63), space_size=2**63 - 1).space_size == 2**63 - 1


def test_a_reopened_database_goes_on_where_it_was(url: URL) -> None:
    with Store.open(as_text(url)) as store:
        study = begin(store)
        store.record(study.id, TRIAL)
    with Store.open(as_text(url)) as store:
        assert begin(store) == study
        store.record(study.id, TRIAL)
        trials = store.trials(study.id)
        assert trials == [TRIAL, TRIAL] and all(just_now(each.created_at) for each in trials)
        store.finish(study.id, WINNER)
    with Store.open(as_text(url), create=False) as store:
        assert begin(store) == dataclasses.replace(study, state="finished", winner=WINNER)


def test_forgetting_starts_afresh_and_deletes_nothing(store: Store) -> None:
    old = begin(store)
    store.record(old.id, TRIAL)
    store.finish(old.id, WINNER)
    store.forget(old.id)
    store.forget(old.id)
    new = store.study(KEY, PROVENANCE, seed=12, space_size=5832)
    assert new.id != old.id and (new.seed, new.state) == (12, "running")
    assert begin(store) == new
    assert store.trials(old.id) == [TRIAL] and store.trials(new.id) == []
    assert [study.state for study in store.studies()] == ["superseded", "running"]
    assert store.studies()[0].winner == WINNER
    assert store.studies("running") == store.studies(number=new.id) == [new] and store.names() == {KEY.workload}


def test_an_attachment_is_of_one_study_and_the_last_of_its_kind_counts(store: Store) -> None:
    one, other = begin(store), begin(store, dataclasses.replace(KEY, world_size=4))
    store.attach(one.id, "taxes", '{"first": 1}')
    assert store.attached(one.id, "taxes") == '{"first": 1}' and store.attached(other.id, "taxes") is None
    store.attach(one.id, "taxes", '{"second": 2}')
    store.attach(other.id, "taxes", '{"other": 3}')
    store.attach(one.id, "timeline", '{"third": 3}')
    assert store.attached(one.id, "timeline") == '{"third": 3}' and store.attached(other.id, "timeline") is None
    assert store.attached(one.id, "taxes") == '{"second": 2}' and store.attached(other.id, "taxes") == '{"other": 3}'


@pytest.mark.parametrize("method", ["record", "trials", "finish", "forget"])
def test_an_unknown_study_is_refused(store: Store, method: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"record": (TRIAL,), "finish": (WINNER,)}
    with pytest.raises(StoreError, match="41"):
        getattr(store, method)(41, *arguments.get(method, ()))


def test_recording_and_opening_are_quick(path: Path, sqlite_store: Store) -> None:
    """By the Python functions that they enter, which hang on no machine's speed: some 1100 and 1000."""
    study = begin(sqlite_store)
    sqlite_store.record(study.id, TRIAL)

    def open_again() -> None:
        with Store.open(path):
            pass

    recording, opening = python_calls(lambda: sqlite_store.record(study.id, TRIAL)), python_calls(open_again)
    assert recording < 2500 and opening < 2500, (recording, opening)


def test_differences_descend_into_the_problem() -> None:
    other = dataclasses.replace(
        KEY, problem='{"dtype":"fp16","m":4096,"n":28672,"world_size":8,"z":true}', device="NVIDIA H100"
    )
    assert KEY.differences(other) == {
        "dtype": ("bf16", "fp16"),
        "k": ("8192", "absent"),
        "z": ("absent", "true"),
        "device": ("NVIDIA H200", "NVIDIA H100"),
    }


def test_the_world_size_is_one_difference() -> None:
    other = dataclasses.replace(KEY, problem=KEY.problem.replace('"world_size":8', '"world_size":4'), world_size=4)
    assert KEY.differences(other) == {"world_size": ("8", "4")}


@pytest.mark.parametrize("problem", ['{"n":1,"m":1}', "[1]", ""])
def test_a_problem_that_is_not_canonical_is_refused(problem: str) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(KEY, problem=problem)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.MEASURED])
def test_a_trial_without_latency_comes_back(store: Store, study: int, outcome: Outcome) -> None:
    reason = 'tile_m=64: "no" → müßig\nsecond line'
    failed = [
        TrialRecord(Config({}), Evaluation(outcome, reason, error=error)) for error in (None, 0.0, 1e-300, math.inf)
    ]
    for each in failed:
        store.record(study, each)
    assert store.trials(study) == failed


def test_an_error_may_be_no_number_and_a_reason_no_text(store: Store, study: int) -> None:
    strange = Evaluation(Outcome.CRASHED, "bad \udcff byte, nul \0 too", error=math.nan)
    store.record(study, TrialRecord(Config({}), strange))
    found = store.trials(study)[0].evaluation
    assert found.error is not None and math.isnan(found.error)
    assert found.reason == "bad \\udcff byte, nul \\x00 too"


@pytest.mark.parametrize("name", ["median", "isolated", "predicted"])
def test_a_time_that_is_no_number_is_a_bug(store: Store, study: int, name: str) -> None:
    latency = copy.copy(TRIAL.evaluation.latency)
    bad = dataclasses.replace(TRIAL, evaluation=Evaluation(Outcome.MEASURED, latency=latency))
    object.__setattr__(bad if name == "predicted" else latency, name, math.nan)  # past any check of its own
    with pytest.raises(ValueError, match="number"):
        store.record(study, bad)
    assert store.trials(study) == []
