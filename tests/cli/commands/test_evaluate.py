from __future__ import annotations

from typing import Any

from fakes import Bench, FakeGang

from autotune.config import Config
from autotune.machine import H100
from autotune.outcome import Evaluation
from autotune.results.figures import config_text
from autotune.workloads import workload

WORKLOAD = workload("all_gather_gemm")
DEFAULT = WORKLOAD.default_config(WORKLOAD.default_problem(H100, 8), H100)


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
    latency = gpus.json(*words)["latency"]
    assert given == [(7, 25, 25)]
    assert latency["host"] == 25.0 and latency["isolated"] == latency["median"] + 25.0


def test_a_config_may_be_pasted_as_it_is_shown(gpus: Bench) -> None:
    """Words take the types of the space's values."""
    config = DEFAULT
    assert config["preload_b"] is False and isinstance(config["block_m"], int)
    result = gpus.tune("all-gather-gemm", "--config", config_text(config))
    assert result.exit_code == 0 and gpus.gangs[0].calls == [config], result.output
    again = gpus.tune("all-gather-gemm", "--config", config_text(config).replace(" ", ","))
    assert again.exit_code == 0
