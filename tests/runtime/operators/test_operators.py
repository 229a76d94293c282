"""Operators give the right result in every mode, call after call, and say what is wrong with a call."""

from __future__ import annotations

from typing import Any

import pytest
from calls import MODES, ON_RANKS, WORST, are_right, found_out_and_mended, lied_to_nobody, url, wrong_of
from ranks_of_functions import run_ranks

Pair = dict[str, list[Any]]

RIGHT = {"shards_anywhere": 3 * len(MODES["all_gather_gemm"]), "grown": 6, "whole_caps": 3}
ALONE = {
    "threads_at_once": 1, "memory_is_free": 1,
    "rows_of_a_matrix": len(MODES["gemm_all_reduce"] - {"bsp", "custom_collective"}),
}  # fmt: skip
"""The least number of answers of functions that give errors, or True; of two ranks, and of one."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    (answers,) = run_ranks(ON_RANKS, list(ALONE), 1, folder, argument=url(folder))
    return dict(answers)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    turns = ["every_mode", "disagreements", "missed", "missed_backward", "threads_in_turns"]
    names = [*turns, *RIGHT, "missed_by_a_host"]
    answers = run_ranks(ON_RANKS, names, 2, folder, argument=url(folder))
    return {name: [answer[name] for answer in answers] for name in names}


def test_every_mode_is_right_call_after_call_operators_in_turns(pair: Pair) -> None:
    are_right(pair["every_mode"], MODES)


@pytest.mark.parametrize(("name", "least"), RIGHT.items())
def test_it_does_not_matter_where_a_shard_lies_how_sizes_change_or_how_a_cap_is_written(
    pair: Pair, name: str, least: int
) -> None:
    for found in pair[name]:
        assert not wrong_of(found, least)


def test_ranks_that_disagree_are_told_so_on_every_rank(pair: Pair) -> None:
    expected = {
        "config": "InvalidConfig", "problem": "RanksDisagree", "no rows on one": "RanksDisagree",
        "operator": "RanksDisagree", "heap": "HeapExhausted", "left": "True", "opening": "InputError",
        "sizes": "RanksDisagree", "closed": "InputError",
    }  # fmt: skip
    for said in pair["disagreements"]:
        assert {name: text.partition(":")[0] for name, text in said.items()} == expected


@pytest.mark.parametrize("missed", ["missed", "missed_by_a_host"])
def test_a_missed_call_is_found_out_and_mended(pair: Pair, missed: str) -> None:
    *others, last = pair[missed]
    for said in others:
        assert said["call"].startswith("GangError")
    found_out_and_mended(others, last)


def test_a_backward_that_a_rank_comes_to_too_late_has_no_wrong_gradients(pair: Pair) -> None:
    lied_to_nobody(pair["missed_backward"])


def test_threads_may_share_a_context(pair: Pair) -> None:
    for found in pair["threads_in_turns"]:
        assert len(found["errors"]) == 8
        assert max(found["errors"]) < WORST
        assert found["same configs"]


@pytest.mark.parametrize(("name", "least"), ALONE.items())
def test_threads_rows_of_a_matrix_and_a_callers_memory(alone: dict[str, Any], name: str, least: int) -> None:
    assert not wrong_of(alone[name], least)
