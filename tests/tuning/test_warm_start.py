"""Winners of earlier versions are tried again, in today's words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, latency_of

from autotune.config import Config
from autotune.db import CacheKey, Store, TrialRecord, Winner
from autotune.outcome import Evaluation, Outcome
from autotune.tuning.warm_start import previous_winner, warm_starts
from autotune.workloads import provenance_of, workload

FOUND = workload("gemm_all_reduce")
PROBLEM = FOUND.problem_type(m=16, n=8192, k=28672, world_size=8)


def in_old_words(config: Config) -> Config:
    names, protocols = {"programs_per_unit": "residents"}, {"signal": "flag", "ll": "packed"}
    return Config({names.get(name, name): protocols.get(str(value), value) for name, value in config.items()})


def test_the_last_winner_and_the_neighbours_of_an_earlier_version_are_tried(tmp_path: Path) -> None:
    winner = FOUND.default_config(PROBLEM, EIGHT_GPUS)
    runner_up = winner.replace(protocol="ll")
    gone = Config({"mode": "one_shot", "unheard_of": 3})
    provenance = dataclasses.replace(provenance_of(FOUND), source_hash="old", space="old")
    with Store.open(tmp_path / "cache.db") as store:
        study = store.study(CacheKey.of(PROBLEM, EIGHT_GPUS), provenance, seed=0, space_size=1)
        for config, median in ((in_old_words(winner), 20.0), (in_old_words(runner_up), 21.0), (gone, 22.0)):
            store.record(study.id, TrialRecord(config, Evaluation(Outcome.MEASURED, latency=latency_of(median))))
        store.finish(study.id, Winner(in_old_words(winner), latency_of(20.0)))
        assert previous_winner(FOUND, PROBLEM, EIGHT_GPUS, store) == [winner]
        near = dataclasses.replace(PROBLEM, m=32)
        assert previous_winner(FOUND, near, EIGHT_GPUS, store) == []
        assert warm_starts(FOUND, near, EIGHT_GPUS, store) == [winner, runner_up]


@pytest.mark.parametrize(("m", "tried"), [(256, True), (257, False), (1, True)])
def test_a_winner_of_far_sizes_is_not_tried(tmp_path: Path, m: int, tried: bool) -> None:
    winner = FOUND.default_config(PROBLEM, EIGHT_GPUS)
    with Store.open(tmp_path / "cache.db") as store:
        study = store.study(CacheKey.of(PROBLEM, EIGHT_GPUS), provenance_of(FOUND), seed=0, space_size=1)
        store.finish(study.id, Winner(winner, latency_of(20.0)))
        assert warm_starts(FOUND, dataclasses.replace(PROBLEM, m=m), EIGHT_GPUS, store) == [winner] * tried
