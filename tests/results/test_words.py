"""Configs told in words."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import EIGHT_GPUS

from autotune.config import Config
from autotune.results.lines import in_words
from autotune.workloads import workload
from autotune.workloads.user_files import BUILT_IN


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_declared_dimension_tells_its_values_apart(name: str) -> None:
    """Where it tells them at all; a value that goes without saying is one of them."""
    found = workload(name)
    for config in found.first_configs(found.default_problem(EIGHT_GPUS, 8), EIGHT_GPUS):
        for dimension in found.space.dimensions_of(str(config["mode"])):
            told = [dimension.told({**config, dimension.name: value}) for value in dimension.values]
            assert dimension.say == "" or len(set(told)) == len(told), dimension
            assert not any("_" in each or "{" in each for each in told), "a value that has no words"


def test_a_config_of_another_version_is_told() -> None:
    old = Config({"mode": "shove", "block_m": 16, "signals": "never", "age": 3})
    assert in_words("gemm_reduce_scatter", old) == "shove; block_m 16, never, age 3."


def test_a_default_in_words() -> None:
    found = workload("all_gather_gemm")
    config = found.default_config(found.default_problem(EIGHT_GPUS, 8), EIGHT_GPUS).replace(
        block_m=128, block_n=256, block_k=64, comm_programs=12, transfer_rows=256, split_k=1
    )
    text = in_words("all_gather_gemm", config)
    assert text.startswith("push: each rank sends")
    assert "256 rows per signal, 12 programs move data" in text and "tile 128×256×64" in text
    assert "split-K" not in text


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("gemm_all_reduce", {"split_k": 2, "group_m": 2}, "swizzled by 2 rows of tiles, split-K by 2."),
        ("gemm_all_reduce", {"split_k": 1, "group_m": 1, "num_warps": 4}, "4 warps."),
        ("moe_gemm_combine", {"combine": "push", "swap_ab": True}, "sums are pushed, tiles are computed transposed."),
        ("moe_gemm_combine", {"combine": "pull", "swap_ab": False}, "sums are pulled."),
        ("flash_decode", {"reducer": "last", "wire": "rounded"}, "the last split reduces, partial results rounded."),
    ],
)
def test_values_in_words(name: str, values: dict[str, Any], told: str) -> None:
    assert in_words(name, Config(values)) == told


def test_dimensions_without_a_phrase_are_named() -> None:
    assert in_words("matmul_kernel", Config({"BLOCK": 64, "EVEN": True})) == "BLOCK 64, EVEN true."
    assert in_words("theirs", Config({"mode": "ring\n", "x": 1})) == "mode ring\\n; x 1."
    assert in_words("theirs", Config({})) == "No dimensions."
