from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import Bench, FakeGang

from autotune.config import Config
from autotune.db import Store
from autotune.machine import H100
from autotune.outcome import Evaluation
from autotune.results.figures import config_text, microseconds
from autotune.workloads import workload

WORKLOAD = workload("all_gather_gemm")
DEFAULT = WORKLOAD.default_config(WORKLOAD.default_problem(H100, 8), H100)


def test_one_config_is_measured_once_and_not_stored(gpus: Bench, tmp_path: Path) -> None:
    result = gpus.tune("all-gather-gemm", "--config", DEFAULT.to_json())
    assert result.exit_code == 0, result.output
    assert "outcome  measured" in result.stdout and "latency" in result.stdout
    (gang,) = gpus.gangs
    assert gang.calls == [DEFAULT] and gang.closed == 1
    assert not (tmp_path / "cache.db").exists()


def test_it_is_measured_as_is_asked_for_and_each_time_is_its_own(gpus: Bench) -> None:
    given = []

    def prepare(gang: FakeGang) -> None:
        works, gang.host = gang.evaluate, lambda config: 25.0

        def evaluate(config: Config, seed: int, plan: Any) -> Evaluation:
            given.append((seed, plan.screen, plan.iterations))
            return works(config, seed, plan)

        gang.evaluate = evaluate  # type: ignore[method-assign]

    gpus.prepare = prepare
    words = ("all-gather-gemm", "--config", DEFAULT.to_json(), "--seed", "7", "--effort", "full")
    shown = gpus.tune(*words).stdout
    median = gpus.json(*words)["latency"]["median"]
    assert given == [(7, 25, 25)] * 2
    assert "25.00 µs to enqueue a call" in shown
    assert f"{microseconds(median + 25.0)}, one bound call" in shown and f"latency   {microseconds(median)}" in shown


def test_a_config_may_be_pasted_as_it_is_shown(gpus: Bench) -> None:
    """Words take the types of the space's values."""
    config = DEFAULT
    assert config["preload_b"] is False and isinstance(config["block_m"], int)
    result = gpus.tune("all-gather-gemm", "--config", config_text(config))
    assert result.exit_code == 0 and gpus.gangs[0].calls == [config], result.output
    again = gpus.tune("all-gather-gemm", "--config", config_text(config).replace(" ", ","))
    assert again.exit_code == 0


def test_its_end_as_json(gpus: Bench) -> None:
    values = gpus.json("all-gather-gemm", "--config", DEFAULT.to_json())
    assert values["outcome"] == "measured" and values["latency"]["median"] > 0


def test_a_config_that_fails_says_how(gpus: Bench) -> None:
    config = DEFAULT.replace(transfer_rows=16, peer_order="fanout")
    result = gpus.tune("all-gather-gemm", "--config", config.to_json())
    assert result.exit_code == 1
    assert "wrong result" in result.stdout and "made to end as" in result.stdout


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("push", "'push': write a config once as NAME=VALUE words, mode=push block_m=128, or as JSON"),
        ("mode=push mode=pull", "'mode=pull': write a config once"),
        ("mode=push block_m=sixty", "mode push needs block_k"),
        (f"{config_text(DEFAULT)} colour=red", "mode push has no colour"),
        (config_text(DEFAULT.replace(block_m=100)), "block_m='100': allowed: 16"),
        ("{", "config is not JSON"),
        ('{"mode": "teleport"}', "allowed: bsp, own_collective, pull"),
        ('{"mode": "push"}', "mode push needs block_k"),
        (DEFAULT.replace(block_m=100).to_json(), "block_m=100: allowed: 16"),
        (DEFAULT.replace(schedule="tile", push_site="side_stream").to_json(), "residency ("),
        (json.dumps({"mode": None}), "allowed: strings"),
    ],
)
def test_an_invalid_config_is_refused_with_the_violation(gpus: Bench, config: str, told: str) -> None:
    result = gpus.tune("all-gather-gemm", "--config", config)
    assert result.exit_code == 2 and result.stdout == ""
    assert told in result.stderr and not gpus.gangs


def test_what_is_stored_is_not_lost(gpus: Bench, tmp_path: Path) -> None:
    gpus.tune("all-gather-gemm", "--trials", "6", "--effort", "quick")
    gpus.tune("all-gather-gemm", "--config", DEFAULT.to_json())
    gpus.tune("all-gather-gemm", "--config", "nonsense")
    with Store.open(tmp_path / "cache.db") as store:
        assert len(store.entries()) == 1 and len(store.studies()) == 1


@pytest.mark.parametrize(
    "words", [("--trials", "6"), ("--budget", "60s"), ("--force",), ("--optuna-storage", "x.db"), ("--regime", "graph")]
)
def test_options_of_a_search_are_refused_beside_a_config(gpus: Bench, words: tuple[str, ...]) -> None:
    result = gpus.tune("all-gather-gemm", "--config", DEFAULT.to_json(), *words)
    assert result.exit_code == 2 and not gpus.gangs
    assert (
        f"{words[0]}: for a search, and --config measures one config as all regimes call it: choose one"
        in result.stderr
    )
