"""Winners of earlier versions are tried again."""

from __future__ import annotations

import dataclasses
from typing import Any

from fakes import EIGHT_GPUS, latency_of

from autotune.config import Config
from autotune.db import CacheKey, Store, TrialRecord, Winner
from autotune.outcome import DEFAULT_REGIME, Evaluation, Latency, Outcome, Regime
from autotune.task import Task
from autotune.tuning.warm_start import neighbours, previous_winner, warm_starts
from autotune.workloads import provenance_of, workload

FOUND = workload("gemm_all_reduce")
PROBLEM = FOUND.problem_type(m=16, n=8192, k=28672, world_size=8)


TASK = Task(PROBLEM, EIGHT_GPUS)
KEY = CacheKey.of(TASK)


def staged(stages: int, group_m: int = 4) -> Config:
    return FOUND.default_config(TASK).replace(num_stages=stages, group_m=group_m)


def of(**fields: Any) -> Task[Any]:
    return Task(dataclasses.replace(PROBLEM, **fields), EIGHT_GPUS)


def finish(
    store: Store, key: CacheKey, winner: Config, *trials: tuple[Config, Latency], verified: bool = False, **by: str
) -> None:
    """A study by today's sources and versions, but for those given."""
    study = store.study(key, dataclasses.replace(provenance_of(FOUND), **by), seed=0, space_size=1)
    for config, latency in trials:
        store.record(study.id, TrialRecord(config, Evaluation(Outcome.MEASURED, latency=latency)))
    store.finish(study.id, Winner(winner, latency_of(20.0), verified=verified))


def test_the_last_winner_and_the_neighbours_of_an_earlier_version_are_tried(store: Store) -> None:
    winner = FOUND.default_config(TASK)
    tried = [winner, winner.replace(protocol="ll"), Config({"mode": "one_shot", "unheard_of": 3})]
    trials = [(config, latency_of(20.0 + number)) for number, config in enumerate(tried)]
    finish(store, KEY, winner, *trials, source_hash="old", space="old")
    assert previous_winner(FOUND, TASK, store) == [winner]
    assert previous_winner(FOUND, of(m=32), store) == []
    assert warm_starts(FOUND, of(m=32), store) == tried[:2]


def test_the_winners_of_the_searched_sizes_on_both_sides_are_measured_too(store: Store) -> None:
    for m, stages, verified, fields in (
        (4, 1, False, {}), (8, 2, True, {}), (2, 3, False, {}), (32, 4, False, {}), (64, 5, False, {}),
        (24, 6, False, {"bias": True}), (12, 7, False, {"n": 4096}),
    ):  # fmt: skip
        finish(store, CacheKey.of(of(m=m, **fields)), staged(stages), verified=verified)
    assert neighbours(store, KEY, provenance_of(FOUND), ["m"]) == [staged(1), staged(4)]
    assert neighbours(store, KEY, provenance_of(FOUND), ["m", "n"]) == [staged(1), staged(4)]
    assert neighbours(store, KEY, dataclasses.replace(provenance_of(FOUND), torch="1.0"), ["m"]) == []
    assert neighbours(store, CacheKey.of(of(m=1024)), provenance_of(FOUND), ["m"]) == [], "no border is drawn as far"


def test_the_nearest_winners_come_first_and_another_type_or_architecture_is_farther_than_sizes(store: Store) -> None:
    keys = [
        dataclasses.replace(KEY, arch="sm_89"), CacheKey.of(of(dtype="fp16")), CacheKey.of(of(m=128)),
        CacheKey.of(of(m=32)), CacheKey.of(TASK, Regime.GRAPH),
    ]  # fmt: skip
    for stages, key in enumerate(keys, start=1):
        finish(store, key, staged(stages))
    assert warm_starts(FOUND, TASK, store) == [staged(5), staged(4), staged(3)], "another regime, m=32, m=128"


def test_of_the_nearest_problem_s_search_the_four_fastest_in_its_regime_are_tried(store: Store) -> None:
    hosts = {1: 40.0, 2: 30.0, 3: 20.0, 4: 60.0, 5: 50.0, 6: 70.0}
    for m, group_m in ((64, 8), (32, 4)):
        trials = [
            (staged(stages, group_m), latency_of(19.0 - number, host=host))
            for number, (stages, host) in enumerate(hosts.items())
        ]
        finish(store, CacheKey.of(of(m=m)), staged(3, group_m), *trials)
    assert warm_starts(FOUND, TASK, store) == [staged(3), staged(3, 8), staged(2), staged(1), staged(5)]


def test_the_previous_winner_is_the_newest_of_the_same_key(store: Store) -> None:
    for stages, regime in ((1, DEFAULT_REGIME), (2, DEFAULT_REGIME), (3, Regime.GRAPH)):
        finish(store, CacheKey.of(TASK, regime), staged(stages), source_hash=f"version {stages}")
    found = [previous_winner(FOUND, TASK, store, regime) for regime in (DEFAULT_REGIME, Regime.GRAPH, Regime.ISOLATED)]
    assert found == [[staged(2)], [staged(3)], []]
