"""Studies of every kind: a long one, one trial, failures alone, an interrupted one, and one full of hostile names."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, LIMITS, RATES, FakeGang, evaluation_of, formula, latency_of, push_of, tune_over

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, TrialRecord, Winner
from autotune.outcome import DEFAULT_REGIME, Evaluation, Latency, Outcome
from autotune.results.study import Study, finished, unfinished
from autotune.task import Task
from autotune.tuning import Budget, Effort
from autotune.tuning.finals import merge
from autotune.workloads import provenance_of, workload
from autotune.workloads.roofline import roofline

EVIL = "\x1b]0;owned\x07</script><script>alert(1)</script><img src=x onerror=alert(2)>{b}\u202e\n&amp;\"'`"

FOUND = workload("all_gather_gemm")
EFFORT = Effort(trials=60, screen=3, iterations=9, finalists=3, rounds=3)


def tuned(file: Path, trials: int, **told: Any) -> Study:
    """A search over a fake gang that is told so."""
    gang = FakeGang(FOUND.default_problem(EIGHT_GPUS, 8))
    vars(gang).update(told)
    with Store.open(file) as store:
        tune_over(gang, store, FOUND, Budget(trials), EFFORT)
        entries = store.entries()
        return finished(store, entries[0], FOUND) if entries else unfinished(store, store.studies()[0], FOUND)


def long(file: Path, trials: int = 120) -> Study:
    """As a search would write it, which would take a minute: a walk through the space, then finals of seven."""
    task, rng = Task(FOUND.default_problem(EIGHT_GPUS, 8), EIGHT_GPUS), random.Random(1)
    config = push_of(task)
    tried = dict.fromkeys([*FOUND.baselines(task).values(), config])
    modes = [c for c in FOUND.first_configs(task) if c["mode"] not in ("push", "warp_specialized")]
    while len(tried) < trials:
        config = rng.choice(list(FOUND.space.neighbours(rng.choice([config, config, *modes]), task)))
        tried[config] = None
    found = {config: _timed(config) for config in tried}
    best = sorted((c for c in tried if found[c].latency is not None), key=lambda c: formula(c))[:4]
    finalists = [*list(tried)[:3], *(c for c in best if c not in list(tried)[:3])]
    key, provenance = CacheKey.of(task), provenance_of(FOUND)
    with Store.open(file) as store:
        begun = store.study(key, provenance, seed=0, space_size=FOUND.space.size(task))
        for number, config in enumerate(tried):
            source = "baseline" if config["mode"] == "bsp" else "default" if number == 2 else "sampler"
            store.record(begun.id, TrialRecord(config, found[config], source, number, formula(config) * 1.1))
        rounds: dict[Config, list[Latency]] = {}
        for number, config in itertools.product(range(3), finalists):
            measured = _timed(config, rng.gauss(1, 0.003))
            store.record(begun.id, TrialRecord(config, measured, "final", number))
            if measured.latency is not None:
                rounds.setdefault(config, []).append(measured.latency)
        merged = {config: merge(latencies) for config, latencies in rounds.items()}
        baselines = {name: merged[c] for name, c in FOUND.baselines(task).items()}
        parts = {name: merge([latency_of(value, 8)] * 3) for name, value in LIMITS.items()}
        won = min(merged, key=lambda c: merged[c].of(DEFAULT_REGIME))
        store.finish(begun.id, Winner(won, merged[won], baselines, parts, roofline(task.problem, RATES)))
        return finished(store, store.entries()[0], FOUND)


def _timed(config: Config, factor: float = 1.0) -> Evaluation:
    """In all regimes, with the host at its work for less than the device."""
    found = evaluation_of(config, 8)
    if found.latency is None:
        return found
    median = found.latency.median * factor
    latency = latency_of(median, 8, host=200.0, isolated=median + 200.0)
    return dataclasses.replace(found, latency=latency)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """120 trials, with a winner."""
    return long(tmp_path_factory.mktemp("long") / "cache.db")


@pytest.fixture(scope="session")
def one_trial(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The baselines and the default."""
    return tuned(tmp_path_factory.mktemp("one") / "cache.db", 1)


@pytest.fixture(scope="session")
def only_failed(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return tuned(tmp_path_factory.mktemp("failed") / "cache.db", 12, broken=True)


@pytest.fixture(scope="session")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return tuned(tmp_path_factory.mktemp("interrupted") / "cache.db", 300, interrupt_after=30)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Every text that comes from a database is hostile."""
    problem = json.dumps({"m": EVIL, f"n{EVIL}": 4}, sort_keys=True, separators=(",", ":"))
    key = CacheKey(f"theirs{EVIL}", problem, 8, EVIL, EVIL, EVIL)
    provenance = Provenance(EVIL, EVIL, EVIL, EVIL, EVIL, EVIL)
    with Store.open(tmp_path_factory.mktemp("hostile") / "cache.db") as store:
        begun = store.study(key, provenance, seed=0, space_size=9)
        configs = [Config({"mode": EVIL, f"knob{EVIL}": value}) for value in (f"a{EVIL}", f"b{EVIL}", "c")]
        for place, config in enumerate(configs):
            found = Evaluation(Outcome.MEASURED, latency=latency_of(100.0 + place, 8))
            store.record(begun.id, TrialRecord(config, found, source=f"source{EVIL}"))
            store.record(begun.id, TrialRecord(config, found, source="final", number=0))
        store.record(begun.id, TrialRecord(Config({"mode": EVIL}), Evaluation(Outcome.CRASHED, f"reason{EVIL}")))
        named = {f"base{EVIL}": latency_of(530.0, 8)}
        store.finish(begun.id, Winner(configs[0], latency_of(100.0, 8), named, {f"part{EVIL}": latency_of(90.0, 8)}))
        return finished(store, store.entries()[0])


@pytest.fixture(scope="session")
def without_modes(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """What the decorator tunes: dimensions of the user's own, in no space that is known."""
    key = CacheKey("matmul_kernel", '{"M":64}', 1, "GPU", "sm_90", "none")
    with Store.open(tmp_path_factory.mktemp("plain") / "cache.db") as store:
        begun = store.study(key, Provenance("a", "b", "3", "0", "2", "5"), seed=0, space_size=6)
        for size in (16, 128, 32, 64):
            config = Config({"mode": "push", "block_m": size})
            latency = evaluation_of(config, 1)
            store.record(begun.id, TrialRecord(Config({"BLOCK": size}), latency, source="sampler"))
        store.finish(begun.id, Winner(Config({"BLOCK": 64}), latency_of(380.0, 1)))
        return finished(store, store.entries()[0])


@pytest.fixture(params=["study", "one_trial", "only_failed", "interrupted", "hostile", "without_modes"])
def any_study(request: pytest.FixtureRequest) -> Study:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
