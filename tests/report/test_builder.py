from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakes import BASELINE, EIGHT_GPUS, LAPTOP, LIMITS, evaluation_of, latency_of

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Store, TrialRecord, Winner
from autotune.outcome import Evaluation, Latency, Outcome, Regime
from autotune.ranks.evaluation import RESTART
from autotune.report import Report, build, to_markdown
from autotune.results.builder import rank_correlation
from autotune.workloads import provenance_of, workload

Tuned = Callable[..., Entry]


def test_the_winner_and_its_speedups(report: Report) -> None:
    assert [each.baseline for each in report.speedups] == ["bsp graph", "bsp eager"]
    first = report.speedups[0]
    assert first.ratio.value == pytest.approx(BASELINE / report.latency.median)
    assert first.ratio.error == pytest.approx(0.0) and first.ratio.rounds == 2, "the fake gang's rounds are all alike"


def test_the_limit_is_the_slowest_part(report: Report) -> None:
    assert report.limit is not None
    assert report.limit.slowest == "gemm" and set(report.limit.parts) == {"gemm", "all_gather"}
    assert report.limit.share.value == pytest.approx(LIMITS["gemm"] / report.latency.median)


def test_the_taxes_are_what_baselines_and_parts_tell(report: Report) -> None:
    taxes = {tax.name: tax.microseconds for tax in report.taxes}
    assert taxes == {
        "kernel launch": pytest.approx(20.0),
        "bulk synchrony and locality": pytest.approx(BASELINE - LIMITS["gemm"]),
        "won back by the winner": pytest.approx(BASELINE - report.latency.median),
    }


def test_the_ten_best_rise_and_the_winner_is_marked(report: Report) -> None:
    medians = [each.latency.median for each in report.best]
    assert len(medians) == 10 and medians == sorted(medians)
    assert [each.config for each in report.best if each.winner] == [report.config]
    assert sum(each.final is not None for each in report.best) >= 3
    assert len({each.config for each in report.best}) == 10


def test_every_outcome_is_counted_with_an_example(report: Report, studied: Path) -> None:
    counts = {ending.outcome: ending.count for ending in report.endings}
    with Store.open(studied) as store:
        searched = [record for record in store.trials(report.study_id) if record.source != "final"]
    assert sum(counts.values()) == len(searched) and counts[Outcome.MEASURED] > 10
    assert report.searched == 40
    for ending in report.endings:
        assert bool(ending.reason) == (ending.outcome is not Outcome.MEASURED)
        assert (ending.example is not None) == bool(ending.reason)


def test_how_each_dimension_mattered(report: Report) -> None:
    knobs = {knob.name: knob for knob in report.knobs}
    assert next(iter(knobs)) == "mode"
    by_mode = {each.value: each for each in knobs["mode"].reached}
    assert by_mode["push"].relative == 1.0 and by_mode["bsp"].best == BASELINE
    assert by_mode["bsp"].configs == 2
    for knob in knobs.values():
        assert len(knob.reached) > 1 and min(each.relative for each in knob.reached) >= 1.0
        assert knob.importance is not None
    assert sum(knob.importance or 0.0 for knob in knobs.values()) == pytest.approx(1.0)
    values = [each.value for each in knobs["comm_programs"].reached]
    assert values == sorted(values, key=int)


def test_with_few_trials_there_is_no_importance(store: Store, tuned: Tuned) -> None:
    report = build(store, tuned(trials=12), workload("all_gather_gemm"))
    assert all(knob.importance is None for knob in report.knobs)
    assert any("needs 20 measured configs" in note for note in report.knob_notes)


def test_without_the_workload_dimensions_are_those_of_the_configs(store: Store, tuned: Tuned) -> None:
    entry = tuned(trials=12)
    with_space, without = build(store, entry, workload("all_gather_gemm")), build(store, entry)
    assert {knob.name for knob in without.knobs} == {knob.name for knob in with_space.knobs}
    assert all(knob.importance is None and not knob.help for knob in without.knobs)
    assert without.problem == with_space.problem


def test_a_space_that_has_changed_since_is_not_used(store: Store, tuned: Tuned) -> None:
    entry = tuned(trials=12)
    entry = dataclasses.replace(entry, provenance=dataclasses.replace(entry.provenance, space="another"))
    report = build(store, entry, workload("all_gather_gemm"))
    assert any("search space has changed" in note for note in report.notes)
    assert all(knob.importance is None for knob in report.knobs)


@pytest.mark.parametrize(("drift", "noted"), [(1.15, False), (2.0, True), (0.4, True)])
def test_a_machine_that_changed_before_the_finals_is_noted(
    store: Store, tuned: Tuned, drift: float, noted: bool
) -> None:
    """A GPU's clock fell during a search: all took twice as long in the finals, where the slower half won."""
    report = build(store, tuned(trials=12, drift=drift))
    notes = [note for note in report.notes if "in the finals as in the search" in note]
    assert len(notes) == noted and all(f"took {drift:.2f} times as long" in note for note in notes)


def test_the_interpreters_times_are_called_what_they_are(store: Store, tuned: Tuned) -> None:
    report = build(store, tuned(LAPTOP, trials=12, world_size=2), workload("all_gather_gemm"))
    assert any("say nothing about GPUs" in note for note in report.notes)


def test_a_study_with_next_to_nothing(store: Store, provenance: Provenance) -> None:
    key = CacheKey("strange", '{"width":4}', 1, "GPU", "sm_90", "nvlink")
    study = store.study(key, provenance, seed=3, space_size=2)
    store.finish(study.id, Winner(Config({"mode": "only"}), latency_of(100.0)))
    (entry,) = store.entries()
    report = build(store, entry)
    assert report.limit is None
    assert report.speedups == report.taxes == report.best == report.endings == report.knobs == ()
    assert report.seed == 3 and report.seconds == 0


@pytest.mark.parametrize("source", ["final", "proof"])
def test_a_finalist_that_failed_is_out_of_the_best(store: Store, provenance: Provenance, source: str) -> None:
    key = CacheKey("strange", '{"width":4}', 1, "GPU", "sm_90", "nvlink")
    study = store.study(key, provenance, seed=0, space_size=3)
    good, racy = Config({"mode": "push", "block_m": 64}), Config({"mode": "push", "block_m": 128})
    for config in (good, racy):
        store.record(study.id, TrialRecord(config, evaluation_of(config), source="sampler"))
    store.record(study.id, TrialRecord(good, evaluation_of(good), source="final", number=0))
    wrong = Evaluation(Outcome.WRONG_RESULT, "rank 0: error 1.0")
    store.record(study.id, TrialRecord(racy, wrong, source=source, number=0))
    store.finish(study.id, Winner(good, latency_of(100.0)))
    report = build(store, store.entries()[0])
    assert [each.config for each in report.best] == [good]
    assert [each.config for each in report.disqualified] == [racy]
    assert report.remeasured == (2 if source == "final" else 1) and report.seconds == pytest.approx(3.0)


def test_what_ranks_cost_that_had_to_be_started_again(store: Store, provenance: Provenance) -> None:
    key = CacheKey("strange", '{"width":4}', 1, "GPU", "sm_90", "nvlink")
    study = store.study(key, provenance, seed=0, space_size=3)
    config = Config({"mode": "push"})
    crashed = Evaluation(Outcome.CRASHED, "rank 1 died", seconds={"compile": 1.0, "measure": 2.0, RESTART: 9.5})
    store.record(study.id, TrialRecord(config.replace(block_m=16), crashed, source="sampler"))
    store.record(study.id, TrialRecord(config.replace(block_m=32), crashed, source="sampler"))
    store.record(study.id, TrialRecord(config, evaluation_of(config), source="sampler"))
    store.finish(study.id, Winner(config, latency_of(100.0)))
    report = build(store, store.entries()[0])
    assert (report.restarts, report.restarting) == (2, 19.0)
    assert re.search(r"\| ranks restarted +\| 2 times, 19 s +\|", to_markdown(report))
    assert re.search(r"\| ranks restarted +\| never +\|", to_markdown(dataclasses.replace(report, restarts=0)))


def test_a_report_is_of_the_regime_tuned_for(store: Store, provenance: Provenance) -> None:
    """On the device the other config and the other baseline are the faster ones."""
    key = CacheKey("strange", '{"width":4}', 1, "GPU", "sm_90", "nvlink", Regime.ISOLATED)
    study = store.study(key, provenance, seed=0, space_size=3)
    winner, other = Config({"mode": "push"}), Config({"mode": "pull"})
    latencies = {other: latency_of(100.0, isolated=300.0), winner: latency_of(120.0, isolated=200.0)}
    for config, latency in latencies.items():
        found = Evaluation(Outcome.MEASURED, latency=latency, seconds={"compile": 1.0, "measure": 2.0, "total": 5.0})
        store.record(study.id, TrialRecord(config, found, source="sampler"))
    for number, reason in enumerate(("the first", "the second")):
        wrong = Evaluation(Outcome.WRONG_RESULT, reason)
        store.record(study.id, TrialRecord(winner.replace(block_m=16 << number), wrong, source="sampler"))
    baselines = {"bsp graph": latency_of(90.0, isolated=500.0), "bsp eager": latency_of(110.0, isolated=400.0)}
    store.finish(study.id, Winner(winner, latencies[winner], baselines))
    report = build(store, store.entries()[0])
    assert [each.config for each in report.best] == [winner, other]
    assert [(each.baseline, each.ratio.value) for each in report.speedups] == [("bsp eager", 2.0), ("bsp graph", 2.5)]
    assert {each.value: each.best for each in report.knobs[0].reached} == {"pull": 300.0, "push": 200.0}
    (launch,) = report.taxes
    assert launch.microseconds == 20.0 and launch.error == pytest.approx(math.hypot(1.1, 0.9)), "no rounds: by spread"
    assert (report.seconds, report.measuring) == (10.0, 4.0)
    (example,) = [each for each in report.endings if each.outcome is Outcome.WRONG_RESULT]
    assert (example.count, example.reason, example.example) == (2, "the first", winner.replace(block_m=16))


@pytest.mark.parametrize(("regime", "served"), [(Regime.GRAPH, True), (Regime.PIPELINED, False)])
def test_a_winner_that_no_look_up_serves_is_called_so(store: Store, regime: Regime, served: bool) -> None:
    """A graph of the library's own calls, which earlier versions let win; it wins nothing back from itself."""
    found = workload("all_gather_gemm")
    key = CacheKey.of(found.default_problem(EIGHT_GPUS, 8), EIGHT_GPUS, regime)
    study = store.study(key, provenance_of(found), seed=0, space_size=3)
    own, limits = latency_of(100.0), {"gemm": latency_of(80.0)}
    store.finish(study.id, Winner(Config({"mode": "bsp", "launch": "graph"}), own, {"bsp graph": own}, limits))
    report = build(store, store.entries()[0], found)
    assert any(note.startswith("No look-up serves this config: ") for note in report.notes) != served
    assert [tax.name for tax in report.taxes] == ["bulk synchrony and locality"]


def test_a_replay_s_dimensions_have_no_importance(studied: Path) -> None:
    """Its search was of a reduced space."""
    with Store.open(studied) as store:
        (entry,) = store.entries()
        provenance = entry.provenance.as_replay(datetime(2026, 11, 20, tzinfo=UTC))
        report = build(store, dataclasses.replace(entry, provenance=provenance), workload("all_gather_gemm"))
    assert report.knobs and all(knob.importance is None for knob in report.knobs)
    assert any("a table recorded 2026-11-20" in note for note in report.notes)


@pytest.fixture
def provenance() -> Provenance:
    return Provenance("abc", "f00d", "3.6.0", "0.0.0", "2.11.0", "580.1")


def test_the_cost_models_rank_correlation_is_that_of_spearman() -> None:
    def records(pairs: list[tuple[float | None, float]]) -> list[TrialRecord]:
        return [
            TrialRecord(
                Config({"mode": "push", "block_m": number}),
                Evaluation(Outcome.MEASURED, latency=Latency(measured, measured, measured, 0.0, 15)),
                predicted=predicted,
            )
            for number, (predicted, measured) in enumerate(pairs)
        ]

    rising = [(float(x), 100.0 + x**3) for x in range(12)]
    assert rank_correlation(records(rising)) == pytest.approx(1.0)
    assert rank_correlation(records([(-x, y) for x, y in rising])) == pytest.approx(-1.0)
    tied = [(float(x // 4), 100.0 + x) for x in range(12)]
    ties, every = 3 * (4**3 - 4), 12**3 - 12
    assert rank_correlation(records(tied)) == pytest.approx(math.sqrt(1 - ties / every))
    assert rank_correlation(records(rising[:9])) is None
    assert rank_correlation(records([(None, y) for _, y in rising])) is None
    assert rank_correlation(records([(5.0, y) for _, y in rising])) is None
