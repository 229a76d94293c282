from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import pytest
from fakes import EIGHT_GPUS, begun, evaluation_of, latency_of

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Store, TrialRecord, Winner
from autotune.outcome import Evaluation, Latency, Outcome, Regime
from autotune.ranks.evaluation import RESTART
from autotune.results.study import Study, finished
from autotune.task import Task
from autotune.workloads import workload

Tuned = Callable[..., Entry]


def test_the_ten_best_rise_and_the_winner_is_marked(report: Study) -> None:
    medians = [each.latency.median for each in report.best]
    assert len(medians) == 10 and medians == sorted(medians)
    assert report.winner in [each.config for each in report.best]
    assert sum(each.final is not None for each in report.best) >= 3
    assert len({each.config for each in report.best}) == 10


def test_every_outcome_is_counted_with_an_example(report: Study) -> None:
    counts = {ending.outcome: ending.count for ending in report.endings}
    searched = [record for record in report.trials if record.source != "final"]
    assert sum(counts.values()) == len(searched) and counts[Outcome.MEASURED] > 10
    assert report.evaluated == 40
    for ending in report.endings:
        assert bool(ending.reason) == (ending.outcome is not Outcome.MEASURED)
        assert (ending.example is not None) == bool(ending.reason)


def test_a_space_that_has_changed_since_is_not_used(store: Store, tuned: Tuned) -> None:
    entry = tuned(trials=12)
    entry = dataclasses.replace(entry, provenance=dataclasses.replace(entry.provenance, space="another"))
    report = finished(store, entry, workload("all_gather_gemm"))
    assert report.notes and all(knob.importance is None for knob in report.knobs)


@pytest.mark.parametrize(("drift", "noted"), [(1.24, False), (1.26, True), (0.82, False), (0.4, True)])
def test_a_machine_that_changed_is_noted(store: Store, tuned: Tuned, drift: float, noted: bool) -> None:
    """A GPU's clock fell during a search: all took twice as long in the finals, where the slower half won."""
    report = finished(store, tuned(trials=12, drift=drift))
    assert any(f"{drift:.2f} times" in note for note in report.notes) == noted


STRANGE = CacheKey("strange", '{"width":4}', 1, "GPU", "sm_90", "nvlink")
VERSIONS = Provenance("abc", "f00d", "3.6.0", "0.0.0", "2.11.0", "580.1")


def told(store: Store, winner: Winner, *trials: TrialRecord, key: CacheKey = STRANGE) -> Study:
    """The report of a workload that is not here."""
    study = store.study(key, VERSIONS, seed=0, space_size=3)
    for trial in trials:
        store.record(study.id, trial)
    store.finish(study.id, winner)
    return finished(store, store.entries()[0])


def test_a_study_with_next_to_nothing(store: Store) -> None:
    report = told(store, Winner(Config({"mode": "only"}), latency_of(100.0)))
    of = report.result
    assert of is not None and of.limit is None and of.speedups == ()
    assert report.best == report.endings == report.knobs == () and report.seconds == 0
    json.dumps(report.to_dict())


@pytest.mark.parametrize("source", ["final", "proof"])
def test_a_finalist_that_failed_is_out_of_the_best_and_restarts_cost_time(store: Store, source: str) -> None:
    good, racy, crashing = (Config({"mode": "push", "block_m": size}) for size in (64, 128, 16))
    wrong = Evaluation(Outcome.WRONG_RESULT, "rank 0: error 1.0")
    crashed = Evaluation(Outcome.CRASHED, "rank 1 died", seconds={"compile": 1.0, RESTART: 9.5})
    searched = [TrialRecord(config, evaluation_of(config), source="sampler") for config in (good, racy)]
    ends = [TrialRecord(good, evaluation_of(good), "final", 0), TrialRecord(racy, wrong, source, 0)]
    won = Winner(good, latency_of(100.0))
    report = told(store, won, *searched, *ends)
    assert [each.config for each in report.best] == [good]
    assert [each.config for each in report.disqualified] == [racy]
    assert report.remeasured == (2 if source == "final" else 1) and report.seconds == pytest.approx(3.0)
    store.forget(report.record.id)
    assert told(store, won, *searched, TrialRecord(crashing, crashed, source="sampler")).restarts == [9.5]


def test_a_report_is_of_the_regime_tuned_for(store: Store) -> None:
    """On the device the other config is the faster one."""
    winner, other = Config({"mode": "push"}), Config({"mode": "pull"})
    latencies = {other: latency_of(100.0, isolated=300.0), winner: latency_of(120.0, isolated=200.0)}
    trials = [TrialRecord(c, Evaluation(Outcome.MEASURED, latency=found), "sampler") for c, found in latencies.items()]
    for number, reason in enumerate(("the first", "the second")):
        wrong = Evaluation(Outcome.WRONG_RESULT, reason)
        trials.append(TrialRecord(winner.replace(block_m=16 << number), wrong, "sampler"))
    isolated = dataclasses.replace(STRANGE, regime=Regime.ISOLATED)
    report = told(store, Winner(winner, latencies[winner]), *trials, key=isolated)
    assert [each.config for each in report.best] == [winner, other]
    assert {each.value: each.best for each in report.knobs[0].reached} == {"pull": 300.0, "push": 200.0}
    (example,) = [each for each in report.endings if each.outcome is Outcome.WRONG_RESULT]
    assert (example.count, example.reason, example.example) == (2, "the first", winner.replace(block_m=16))


@pytest.mark.parametrize(("regime", "served"), [(Regime.GRAPH, True), (Regime.PIPELINED, False)])
def test_a_winner_that_no_look_up_serves_is_called_so(store: Store, regime: Regime, served: bool) -> None:
    """A graph of the library's own calls, which earlier versions let win."""
    found = workload("all_gather_gemm")
    study = begun(store, found, Task(found.default_problem(EIGHT_GPUS, 8), EIGHT_GPUS), regime)
    own, limits = latency_of(100.0), {"gemm": latency_of(80.0)}
    store.finish(study.id, Winner(Config({"mode": "bsp", "launch": "graph"}), own, {"bsp graph": own}, limits))
    report = finished(store, store.entries()[0], found)
    assert any(note.startswith("No look-up serves this config: ") for note in report.notes) != served


def test_the_cost_models_rank_correlation_is_that_of_spearman(report: Study) -> None:
    def records(pairs: list[tuple[float | None, float]]) -> list[TrialRecord]:
        return [
            TrialRecord(
                Config({"mode": "push", "block_m": number}),
                Evaluation(Outcome.MEASURED, latency=Latency(measured, measured, measured, 0.0, 15)),
                predicted=predicted,
            )
            for number, (predicted, measured) in enumerate(pairs)
        ]

    def correlation(pairs: list[tuple[float | None, float]]) -> float | None:
        return dataclasses.replace(report, trials=tuple(records(pairs))).rank_correlation

    rising = [(float(x), 100.0 + x**3) for x in range(12)]
    assert correlation(rising) == pytest.approx(1.0)
    assert correlation([(-x, y) for x, y in rising]) == pytest.approx(-1.0)
    tied = [(float(x // 4), 100.0 + x) for x in range(12)]
    ties, every = 3 * (4**3 - 4), 12**3 - 12
    assert correlation(tied) == pytest.approx(math.sqrt(1 - ties / every))
    assert correlation(rising[:9]) is None
    assert correlation([(None, y) for _, y in rising]) is None
    assert correlation([(5.0, y) for _, y in rising]) is None
