"""Configs told in words."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import EIGHT_GPUS

from autotune.config import Config
from autotune.results.lines import in_words
from autotune.task import Task
from autotune.workloads import workload
from autotune.workloads.user_files import BUILT_IN


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_declared_dimension_tells_its_values_apart(name: str) -> None:
    """Where it tells them at all; a value that goes without saying is one of them."""
    found = workload(name)
    for config in found.first_configs(Task(found.default_problem(EIGHT_GPUS, 8), EIGHT_GPUS)):
        for dimension in found.space.dimensions_of(str(config["mode"])):
            told = [dimension.told({**config, dimension.name: value}) for value in dimension.values]
            assert dimension.say == "" or len(set(told)) == len(told), dimension
            assert not any("_" in each or "{" in each for each in told), "a value that has no words"


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("gemm_all_reduce", {"split_k": 1, "group_m": 1, "num_warps": 4}, "4 warps."),  # one is not said
        ("gemm_reduce_scatter", {"mode": "shove", "block_m": 16, "age": 3}, "shove; block_m 16, age 3."),
        ("matmul_kernel", {"BLOCK": 64, "EVEN": True}, "BLOCK 64, EVEN true."),
        ("theirs", {"mode": "ring\n", "x": 1}, "mode ring\\n; x 1."),
    ],
)
def test_values_in_words(name: str, values: dict[str, Any], told: str) -> None:
    assert in_words(name, Config(values)) == told
