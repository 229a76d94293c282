"""Operands of any number of dimensions and any strides: shared along any dimension, summed or averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import MODES, WORST, url
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS

ON_RANKS = str(Path(__file__).with_name("dimensions_on_ranks.py"))

Pair = list[dict[str, Any]]


@pytest.fixture(scope="module", params=TWO_GPUS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The answers of two ranks."""
    folder = tmp_path_factory.mktemp("pair")
    return run_ranks(ON_RANKS, "everything", 2, folder, gpu=request.param, argument=url(folder))


def test_ranks_share_any_dimension(pair: Pair) -> None:
    names = {"gather 1", "gather -1", "gather -3", "scatter 3", "scatter 1, residual", "reduce"}
    for errors in (answer["dimensions"] for answer in pair):
        assert set(errors) == names
        assert max(errors.values()) < WORST, errors


def test_sums_may_be_averages_and_the_bias_is_added_once(pair: Pair) -> None:
    for errors in (answer["averages"] for answer in pair):
        assert len(errors) == 2 * 5
        assert max(errors.values()) < WORST, errors


def test_scales_by_rows_may_be_a_column(pair: Pair) -> None:
    for errors in (answer["scaled"] for answer in pair):
        assert len(errors) == 2
        assert max(errors.values()) < WORST, errors


def test_operands_of_any_strides_are_right(pair: Pair) -> None:
    wanted = {
        f"{name} {mode} {way}"
        for name in ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")
        for mode in MODES[name]
        for way in ("apart", "transposed", "steps")
    }
    for found in (answer["strides"] for answer in pair):
        assert set(found) >= wanted
        assert max(found.values()) < WORST, found


def test_an_address_tells_nothing_about_strides(pair: Pair) -> None:
    for errors in (answer["one_place"] for answer in pair):
        assert len(errors) == 2 * len(MODES["all_gather_gemm"]) + 2 * len(MODES["gemm_all_reduce"])
        assert max(errors.values()) < WORST, errors


FP8 = ("fp8", "fp8, a column of scales")


def test_shards_may_have_unequal_numbers_of_rows(pair: Pair) -> None:
    for found in (answer["ragged"] for answer in pair):
        assert found.pop("one workspace") == 0
        assert set(found) == {*(f"{way} {first}" for way in ("rows", "across") for first in (5, 7, 8, 0)), *FP8}
        assert max(found.values()) < WORST, found
