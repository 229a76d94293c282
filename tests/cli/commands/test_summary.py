"""The last lines of a run: the next commands, an interrupted run's best, the reason why nothing was measured."""

from __future__ import annotations

import json
from typing import Any

from fakes import Bench, FakeGang

from autotune.config import Config
from autotune.outcome import Evaluation, Outcome

SMALL = ("all-gather-gemm", "--trials", "12", "--effort", "quick")


def test_interrupted_it_tells_what_it_has(gpus: Bench) -> None:
    def prepare(gang: FakeGang) -> None:
        gang.interrupt_after = 8
        works = gang.evaluate

        def evaluate(config: Config, seed: int, plan: Any) -> Evaluation:
            found = works(config, seed, plan)
            gang.restarts = 1
            return found

        gang.evaluate = evaluate  # type: ignore[method-assign]

    gpus.prepare = prepare
    told = gpus.tune(*SMALL)
    assert told.exit_code == 130 and told.stdout.rstrip().endswith("the same command continues the run.")
    assert "\nbest so far  " in told.stdout and "; ranks restarted 1 time\n" in told.stdout
    assert "winner" not in told.stdout and "tune report" not in told.stdout
    values = json.loads(gpus.tune(*SMALL, "--m", "512", "--json").stdout)
    assert values["interrupted"] and not values["finished"] and values["restarts"] == 1
    assert values["microseconds"] == values["latency"]["median"] > 0


def test_where_nothing_could_be_measured_the_last_reason_is_told(gpus: Bench) -> None:
    told: list[str] = []

    def prepare(gang: FakeGang) -> None:
        def evaluate(*_: object) -> Evaluation:
            told.append(f"crash {len(told)}")
            return Evaluation(Outcome.CRASHED, told[-1])

        gang.evaluate = evaluate  # type: ignore[method-assign]

    gpus.prepare = prepare
    result = gpus.tune(*SMALL)
    assert result.exit_code == 1 and f"The last one: crashed, {told[-1]}\n" in result.stdout and len(told) > 9
