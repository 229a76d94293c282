"""bench/first_call.py: the problems it draws, and when a search was near its end."""

from __future__ import annotations

import first_call
import pytest
from fakes import latency_of

from autotune.config import Config
from autotune.db import TrialRecord
from autotune.outcome import Evaluation, Outcome, Regime


@pytest.mark.parametrize(
    ("latencies", "trials"), [([100.0], 1), ([101.0, 100.0], 1), ([103.0, 100.0], 2), ([None, 103.0, 101.9, 100.0], 3)]
)
def test_a_search_is_near_its_end_at_the_first_trial_within_two_percent(
    latencies: list[float | None], trials: int
) -> None:
    baseline = TrialRecord(Config({"mode": "bsp"}), Evaluation(Outcome.MEASURED, latency=latency_of(1.0)), "baseline")
    history = [
        TrialRecord(
            Config({"mode": "push", "number": number}),
            Evaluation(Outcome.MEASURED, latency=latency_of(each)) if each else Evaluation(Outcome.CRASHED, "so"),
            "sampler", number,
        )
        for number, each in enumerate(latencies)
    ]  # fmt: skip
    assert first_call.trials_until_near([baseline, *history], Regime.PIPELINED) == trials
