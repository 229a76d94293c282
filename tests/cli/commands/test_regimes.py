"""``--regime``: what is the fastest depends on how it is called, and so does what is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import Bench, FakeGang

from autotune.config import Config
from autotune.db import Store
from autotune.outcome import HostOverhead

SMALL = ("all-gather-gemm", "--trials", "16", "--effort", "quick")


def host(config: Config) -> float:
    """Every fused kernel costs the host more than the baselines' 530 µs on the device; pulls are cheap."""
    mode = str(config["mode"])
    return {"bsp": 10.0 if config.get("launch") == "graph" else 140.0, "pull": 5.0}.get(mode, 900.0)


def library_s_host(config: Config) -> float:
    """Host times with which the library's captured calls are the fastest, and its eager ones come next."""
    if config["mode"] != "bsp":
        return 2000.0
    return 10.0 if config["launch"] == "graph" else 700.0


def dear_baselines(config: Config) -> float:
    return 2000.0 if config["mode"] == "bsp" else host(config)


@pytest.fixture
def bench(gpus: Bench) -> Bench:
    gpus.prepare = lambda gang: setattr(gang, "host", host)
    return gpus


def tuned(bench: Bench, regime: str) -> Any:
    return bench.json(*SMALL, "--regime", regime)


def test_what_a_neighbour_s_config_loses_is_that_of_bound_calls(gpus: Bench) -> None:
    """Those of the finals: the overhead, the same for every config, is in the winner's claim alone."""

    def prepare(gang: FakeGang) -> None:
        gang.host, gang.overhead = lambda config: 2000.0, HostOverhead(500.0, 600.0)

    gpus.prepare = prepare
    rows = gpus.json("grid", *SMALL, "--m", "2048,4096", "--no-verify")
    assert [row["microseconds"] for row in rows] == [2500.0, 2500.0]
    assert rows[1]["with_neighbour"] == 1.0


def test_a_graph_of_the_library_s_calls_wins_only_for_callers_who_capture(gpus: Bench) -> None:
    """An operator calls the library eagerly, which takes the host 700 µs here; the graph's replay would take 530."""
    gpus.prepare = lambda gang: setattr(gang, "host", library_s_host)
    values = tuned(gpus, "pipelined")
    assert values["config"] == {"mode": "bsp", "launch": "eager"} and values["microseconds"] == 700.0
    assert values["in_regimes"]["bsp graph"]["pipelined"] == 530.0, "the baseline stays the strict one"
    assert values["slower_than"]["pipelined"] == "bsp graph"
    assert tuned(gpus, "isolated")["config"]["launch"] == "eager"


def test_a_look_up_gets_what_was_tuned_for_its_regime_alone(bench: Bench) -> None:
    config = tuned(bench, "graph")["config"]
    assert bench.json("lookup", "all-gather-gemm")["source"] == "predicted"
    found = bench.json("lookup", "all-gather-gemm", "--regime", "graph")
    assert found["source"] == "exact" and found["config"] == config
    missed = bench.tune("show", "all-gather-gemm", "--json")
    assert missed.exit_code == 1 and json.loads(missed.stdout)["key_differences"] == {"regime": ["graph", "pipelined"]}
    near = bench.json("lookup", "all-gather-gemm", "--regime", "graph", "--m", "5120")
    assert near["source"] == "nearest" and near["config"] == config


def test_a_resumed_search_knows_what_the_host_costs(gpus: Bench, tmp_path: Path) -> None:
    def interrupted(gang: FakeGang) -> None:
        gang.host, gang.interrupt_after = dear_baselines, 12

    gpus.prepare = interrupted
    assert gpus.tune(*SMALL, "--regime", "isolated").exit_code == 130
    with Store.open(tmp_path / "cache.db") as store:
        latencies = [trial.evaluation.latency for trial in store.trials(1)]
    known = [latency for latency in latencies if latency is not None]
    assert known and all(latency.host is not None and latency.isolated is not None for latency in known)
    gpus.prepare = lambda gang: setattr(gang, "host", dear_baselines)
    finished = tuned(gpus, "isolated")
    assert finished["resumed"] and finished["config"]["mode"] == "pull"
