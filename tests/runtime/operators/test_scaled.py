"""Operators on fp8 with scales: right in every mode, refused where scales do not fit, whole within torch.compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import MODES, url
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS, sampled

ON_RANKS = str(Path(__file__).with_name("scaled_on_ranks.py"))

Pair = list[dict[str, Any]]


@pytest.fixture(scope="module", params=sampled(TWO_GPUS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The answers of two ranks."""
    folder = tmp_path_factory.mktemp("pair")
    gpu, sample = request.param
    answers = run_ranks(ON_RANKS, "everything", 2, folder, gpu=gpu, argument=(url(folder), sample))
    return [{"sample": sample, **answer} for answer in answers]


def test_every_mode_is_right_with_every_kind_of_scales(pair: Pair) -> None:
    gemms = [
        ("all_gather_gemm", "fp8 row"), ("gemm_reduce_scatter", "fp8 block"), ("gemm_all_reduce", "fp8 tensor"),
        ("all_gather_gemm", "bf16 none"), ("gemm_reduce_scatter", "fp16 none"), ("gemm_all_reduce", "bf16 none"),
    ]  # fmt: skip
    for answers in (answer["right"] for answer in pair):
        assert all(answers.values()), [name for name, right in answers.items() if not right]
        assert set(answers) >= {f"{name} {scales} {mode}" for name, scales in gemms for mode in MODES[name]}
        assert {"all_gather_gemm fp8 block looked up", "gemm_all_reduce fp8_e5m2 row looked up"} <= set(answers)


def test_scales_of_an_a_in_place_may_lie_anywhere(pair: Pair) -> None:
    for answers in (answer["in_place"] for answer in pair):
        assert len(answers) == 2 * len(MODES["all_gather_gemm"])
        assert all(answers.values()), answers


def test_scales_that_do_not_fit_are_refused_with_the_shapes_that_do(pair: Pair) -> None:
    shapes = "allowed: tensor: [1] and [1]; row: [16, 1] and [1, 32]; block: [16, 2] and [2, 1]"
    for told in (answer["refused"] for answer in pair):
        assert told.pop("right") == "no error"
        assert all(text.startswith("InvalidProblem") for text in told.values()), told
        for name in ("shape", "vector", "swapped", "mixed"):
            assert shapes in told[name], told[name]
        assert "scales=none: with dtype=fp8 allowed: tensor, row, block" in told["none"]
        assert "scale_b is None: give both scales" in told["one"]
        assert "scales must be torch.float32" in told["type"]
        assert "scale_a must be contiguous" in told["strides"]
        assert "is on meta" in told["device"]
        assert "b must be torch.float8_e4m3fn" in told["of b"]
        assert "it must be of the result's type, torch.bfloat16" in told["of bias"]
        assert "stored transposed" in told["order"]
        assert "allowed: None, torch.bfloat16" in told["result"]
        assert "scales=row: with dtype=bf16 allowed: none" in told["of bf16"]
        assert "out is [4, 4]" in told["out"]


def test_compiled_calls_give_what_eager_ones_do(pair: Pair) -> None:
    for answer in pair:
        answers = answer["compiled"]
        assert len(answers) == (4 if answer["sample"] else 8)
        assert all(answers.values()), answers
