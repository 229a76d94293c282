"""Trials through the store's door."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
from sample import TRIAL
from studies import just_now

from autotune.config import Config
from autotune.db import Store, TrialRecord
from autotune.outcome import Evaluation, Outcome


def test_a_trial_comes_back_with_every_field(store: Store, study: int) -> None:
    store.record(study, TRIAL)
    [found] = store.trials(study)
    assert found == TRIAL
    assert found.config["split"] is True and found.predicted == 391.5
    assert found.id is not None and just_now(found.created_at)


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
