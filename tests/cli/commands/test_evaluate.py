from __future__ import annotations

from fakes import Bench

from autotune.machine import H100
from autotune.results.figures import config_text
from autotune.task import Task
from autotune.workloads import workload

WORKLOAD = workload("all_gather_gemm")
DEFAULT = WORKLOAD.default_config(Task(WORKLOAD.default_problem(H100, 8), H100))


def test_it_is_measured_as_is_asked_for_and_each_time_is_its_own(gpus: Bench) -> None:
    given = []

    gpus.prepare = lambda gang: setattr(gang, "host", lambda config: 25.0)
    gpus.hook = lambda gang, config, seed, plan: given.append((seed, plan.screen, plan.iterations))
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
