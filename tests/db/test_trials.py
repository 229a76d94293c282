"""Trials through the store's door."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
from studies import begin, just_now

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, TrialRecord
from autotune.outcome import Evaluation, Latency, Outcome


def test_a_trial_comes_back_with_every_field(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord
) -> None:
    study = begin(store, key, provenance)
    store.record(study.id, trial)
    [found] = store.trials(study.id)
    assert found == trial
    assert found.config["split"] is True and found.predicted == 391.5
    assert found.id is not None and just_now(found.created_at)


def test_a_prediction_that_is_no_number_is_a_bug(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord
) -> None:
    study = begin(store, key, provenance)
    with pytest.raises(ValueError, match="not a number"):
        store.record(study.id, dataclasses.replace(trial, predicted=math.nan))
    assert store.trials(study.id) == []


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.MEASURED])
@pytest.mark.parametrize("error", [None, 0.0, 1e-300, math.inf])
def test_a_trial_without_latency_comes_back(
    store: Store, key: CacheKey, provenance: Provenance, outcome: Outcome, error: float | None
) -> None:
    study = begin(store, key, provenance)
    failed = TrialRecord(Config({}), Evaluation(outcome, 'tile_m=64: "no" → müßig\nsecond line', error=error))
    store.record(study.id, failed)
    assert store.trials(study.id) == [failed]


def test_an_error_that_is_no_number_comes_back(store: Store, key: CacheKey, provenance: Provenance) -> None:
    study = begin(store, key, provenance)
    store.record(study.id, TrialRecord(Config({}), Evaluation(Outcome.WRONG_RESULT, "NaN", error=math.nan)))
    [found] = store.trials(study.id)
    assert found.evaluation.error is not None and math.isnan(found.evaluation.error)


def test_a_reason_that_is_no_text_stays_legible(store: Store, key: CacheKey, provenance: Provenance) -> None:
    study = begin(store, key, provenance)
    store.record(study.id, TrialRecord(Config({}), Evaluation(Outcome.CRASHED, "bad \udcff byte, nul \0 too")))
    assert store.trials(study.id)[0].evaluation.reason == "bad \\udcff byte, nul \\x00 too"


def test_a_latency_that_is_no_number_is_a_bug(
    store: Store, key: CacheKey, provenance: Provenance, latency: Latency
) -> None:
    study = begin(store, key, provenance)
    for name in ("median", "low", "high", "skew", "host", "isolated"):
        numbers = copy.copy(latency)
        object.__setattr__(numbers, name, math.nan)  # past any check of its own
        with pytest.raises(ValueError, match="not a number"):
            store.record(study.id, TrialRecord(Config({}), Evaluation(Outcome.MEASURED, latency=numbers)))
    assert store.trials(study.id) == []


def test_trials_keep_their_order_and_repetitions(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord
) -> None:
    study = begin(store, key, provenance)
    again = dataclasses.replace(trial, source="finalist", number=None)
    for record in (trial, again, trial, again):
        store.record(study.id, record)
    assert store.trials(study.id) == [trial, again, trial, again]
