"""Winners of earlier versions are tried again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, latency_of

from autotune.config import Config
from autotune.db import CacheKey, Store, TrialRecord, Winner
from autotune.outcome import DEFAULT_REGIME, Evaluation, Outcome, Regime
from autotune.task import Task
from autotune.tuning.warm_start import neighbours, previous_winner, warm_starts
from autotune.workloads import provenance_of, workload

FOUND = workload("gemm_all_reduce")
PROBLEM = FOUND.problem_type(m=16, n=8192, k=28672, world_size=8)


def test_the_last_winner_and_the_neighbours_of_an_earlier_version_are_tried(tmp_path: Path) -> None:
    winner = FOUND.default_config(Task(PROBLEM, EIGHT_GPUS))
    runner_up = winner.replace(protocol="ll")
    gone = Config({"mode": "one_shot", "unheard_of": 3})
    provenance = dataclasses.replace(provenance_of(FOUND), source_hash="old", space="old")
    with Store.open(tmp_path / "cache.db") as store:
        study = store.study(CacheKey.of(Task(PROBLEM, EIGHT_GPUS)), provenance, seed=0, space_size=1)
        for config, median in ((winner, 20.0), (runner_up, 21.0), (gone, 22.0)):
            store.record(study.id, TrialRecord(config, Evaluation(Outcome.MEASURED, latency=latency_of(median))))
        store.finish(study.id, Winner(winner, latency_of(20.0)))
        assert previous_winner(FOUND, Task(PROBLEM, EIGHT_GPUS), store) == [winner]
        near = dataclasses.replace(PROBLEM, m=32)
        assert previous_winner(FOUND, Task(near, EIGHT_GPUS), store) == []
        assert warm_starts(FOUND, Task(near, EIGHT_GPUS), store) == [winner, runner_up]


def test_the_winners_of_the_searched_sizes_on_both_sides_are_measured_too(tmp_path: Path) -> None:
    here = CacheKey.of(Task(PROBLEM, EIGHT_GPUS))
    with Store.open(tmp_path / "cache.db") as store:
        for m, stages, verified, fields in (
            (4, 1, False, {}), (8, 2, True, {}), (2, 3, False, {}), (32, 4, False, {}), (64, 5, False, {}),
            (24, 6, False, {"bias": True}), (12, 7, False, {"n": 4096}),
        ):  # fmt: skip
            key = CacheKey.of(Task(dataclasses.replace(PROBLEM, m=m, **fields), EIGHT_GPUS))
            study = store.study(key, provenance_of(FOUND), seed=0, space_size=1)
            store.finish(study.id, Winner(staged(stages), latency_of(20.0), verified=verified))
        assert neighbours(store, here, provenance_of(FOUND), ["m"]) == [staged(1), staged(4)]
        assert neighbours(store, here, provenance_of(FOUND), ["m", "n"]) == [staged(1), staged(4)]
        assert neighbours(store, here, dataclasses.replace(provenance_of(FOUND), torch="1.0"), ["m"]) == []
        far = CacheKey.of(Task(dataclasses.replace(PROBLEM, m=1024), EIGHT_GPUS))
        assert neighbours(store, far, provenance_of(FOUND), ["m"]) == [], "no border is drawn as far"


@pytest.mark.parametrize(("m", "tried"), [(256, True), (257, False), (1, True)])
def test_a_winner_of_far_sizes_is_not_tried(tmp_path: Path, m: int, tried: bool) -> None:
    winner = FOUND.default_config(Task(PROBLEM, EIGHT_GPUS))
    with Store.open(tmp_path / "cache.db") as store:
        study = store.study(CacheKey.of(Task(PROBLEM, EIGHT_GPUS)), provenance_of(FOUND), seed=0, space_size=1)
        store.finish(study.id, Winner(winner, latency_of(20.0)))
        assert warm_starts(FOUND, Task(dataclasses.replace(PROBLEM, m=m), EIGHT_GPUS), store) == [winner] * tried


def staged(stages: int, group_m: int = 4) -> Config:
    return FOUND.default_config(Task(PROBLEM, EIGHT_GPUS)).replace(num_stages=stages, group_m=group_m)


def test_the_nearest_winners_come_first_and_another_type_or_architecture_is_farther_than_sizes(tmp_path: Path) -> None:
    wanted, key = [], CacheKey.of(Task(PROBLEM, EIGHT_GPUS))
    keys = {
        staged(1): dataclasses.replace(key, arch="sm_89"),
        staged(2): CacheKey.of(Task(dataclasses.replace(PROBLEM, dtype="fp16"), EIGHT_GPUS)),
        staged(3): CacheKey.of(Task(dataclasses.replace(PROBLEM, m=128), EIGHT_GPUS)),
        staged(4): CacheKey.of(Task(dataclasses.replace(PROBLEM, m=32), EIGHT_GPUS)),
        staged(5): CacheKey.of(Task(PROBLEM, EIGHT_GPUS), Regime.GRAPH),
    }
    with Store.open(tmp_path / "cache.db") as store:
        for config, each in keys.items():
            study = store.study(each, provenance_of(FOUND), seed=0, space_size=1)
            store.finish(study.id, Winner(config, latency_of(20.0)))
            wanted.append(config)
        assert warm_starts(FOUND, Task(PROBLEM, EIGHT_GPUS), store) == wanted[:1:-1], "another regime, m=32, m=128"


def test_of_the_nearest_problem_s_search_the_four_fastest_in_its_regime_are_tried(tmp_path: Path) -> None:
    near = dataclasses.replace(PROBLEM, m=32)
    hosts = {staged(1): 40.0, staged(2): 30.0, staged(3): 20.0, staged(4): 60.0, staged(5): 50.0, staged(6): 70.0}
    with Store.open(tmp_path / "cache.db") as store:
        for problem, group_m in ((dataclasses.replace(PROBLEM, m=64), 8), (near, 4)):
            study = store.study(CacheKey.of(Task(problem, EIGHT_GPUS)), provenance_of(FOUND), seed=0, space_size=1)
            for number, (config, host) in enumerate(hosts.items()):
                latency = latency_of(19.0 - number, host=host)
                trial = TrialRecord(config.replace(group_m=group_m), Evaluation(Outcome.MEASURED, latency=latency))
                store.record(study.id, trial)
            store.finish(study.id, Winner(staged(3, group_m), latency_of(20.0)))
        tried = warm_starts(FOUND, Task(PROBLEM, EIGHT_GPUS), store)
    assert tried == [staged(3), staged(3, 8), staged(2), staged(1), staged(5)]


def test_the_previous_winner_is_the_newest_of_the_same_key(tmp_path: Path) -> None:
    with Store.open(tmp_path / "cache.db") as store:
        for stages, regime in ((1, DEFAULT_REGIME), (2, DEFAULT_REGIME), (3, Regime.GRAPH)):
            provenance = dataclasses.replace(provenance_of(FOUND), source_hash=f"version {stages}")
            study = store.study(CacheKey.of(Task(PROBLEM, EIGHT_GPUS), regime), provenance, seed=0, space_size=1)
            store.finish(study.id, Winner(staged(stages), latency_of(20.0)))
        assert previous_winner(FOUND, Task(PROBLEM, EIGHT_GPUS), store) == [staged(2)]
        assert previous_winner(FOUND, Task(PROBLEM, EIGHT_GPUS), store, Regime.GRAPH) == [staged(3)]
        assert previous_winner(FOUND, Task(PROBLEM, EIGHT_GPUS), store, Regime.ISOLATED) == []
