"""Cost models: a finite prediction for every config of the built-in spaces, ordered as physics has it; else none."""

from __future__ import annotations

import itertools
import math

import pytest

from autotune.machine import H100, INTERPRETED, MI300X
from autotune.workloads import workload

BUILT_IN = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode")


@pytest.mark.parametrize("machine", [H100, MI300X])
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_mode_has_a_finite_prediction(name: str, machine: object) -> None:
    found = workload(name)
    problem = found.default_problem(machine, 8)
    for mode in found.space.modes:
        for config in itertools.islice(found.space.enumerate(problem, machine, mode), 200):
            predicted = found.predict(problem, config, machine)
            assert predicted is not None and math.isfinite(predicted) and predicted > 0


@pytest.mark.parametrize("name", BUILT_IN)
def test_there_is_no_opinion_on_a_machine_without_known_rates(name: str) -> None:
    found = workload(name)
    problem = found.default_problem(INTERPRETED, 2)
    assert found.predict(problem, found.default_config(problem, INTERPRETED), INTERPRETED) is None


def test_what_costs_more_is_predicted_to_take_longer() -> None:
    found = workload("all_gather_gemm")
    problem = found.default_problem(H100, 8)
    config = found.default_config(problem, H100)

    def predicted(**changes: int | str) -> float:
        value = found.predict(problem, config.replace(**changes), H100)
        assert value is not None
        return value

    assert predicted(block_m=64, block_n=64) > predicted()
    assert predicted(loads="pointer") > predicted(loads="tma")
    assert predicted(comm_programs=1) > predicted(comm_programs=16)
    baseline = found.predict(problem, found.baselines(problem, H100)["bsp graph"], H100)
    assert baseline is not None and baseline > predicted()
