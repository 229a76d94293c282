"""Operators with more than a GEMM: activations, residuals, several Bs; right in every mode, compiled, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import url
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS

ON_RANKS = str(Path(__file__).with_name("epilogues_on_ranks.py"))

Pair = list[dict[str, Any]]


@pytest.fixture(scope="module", params=TWO_GPUS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The answers of two ranks."""
    folder = tmp_path_factory.mktemp("pair")
    return run_ranks(ON_RANKS, "everything", 2, folder, gpu=request.param, argument=url(folder))


def test_what_is_infinite_arrives_in_fp8_and_changes_nothing_beside_it(pair: Pair) -> None:
    for answers in (answer["infinite"] for answer in pair):
        assert all(answers.values()), answers
        assert {"gemm_all_reduce two_shot", "gemm_reduce_scatter push", "gemm_reduce_scatter pull"} <= answers.keys()


def test_the_gathered_a_has_the_same_bits_on_every_rank(pair: Pair) -> None:
    for answers in (answer["gathered_bits"] for answer in pair):
        assert all(answers.values()) and "custom_collective sentinel" in answers, answers


def test_results_in_fp8_keep_what_is_special_in_its_block(pair: Pair) -> None:
    for answers in (answer["quantised"] for answer in pair):
        assert all(answers.values()), answers
        assert {"next to zero", "push"} <= answers.keys()


def test_a_residual_may_be_where_the_result_goes(pair: Pair) -> None:
    assert all(all(answer["residual"].values()) for answer in pair), pair


def test_several_bs_take_one_gather(pair: Pair) -> None:
    for answers in (answer["several"] for answer in pair):
        assert all(answers.values()) and len(answers) == 2, answers


def test_the_gathered_a_is_a_tensor_of_its_own(pair: Pair) -> None:
    for answers in (answer["gathered"] for answer in pair):
        assert all(answers.values()), answers
        assert {"rows push", "k push", "pull refused"} <= answers.keys()
