"""Operators give the right result in every mode, call after call, and say what is wrong with a call."""

from __future__ import annotations

from typing import Any

import pytest
from calls import MODES, ON_RANKS, WORST, are_right, found_out_and_mended, lied_to_nobody, url
from ranks_of_functions import run_ranks

Pair = dict[str, list[Any]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    names = ["threads_at_once", "memory_is_free", "rows_of_a_matrix"]
    (answers,) = run_ranks(ON_RANKS, "several", 1, folder, argument=(url(folder), names))
    return dict(answers)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    names = [
        "every_mode", "shards_anywhere", "disagreements", "missed", "missed_backward", "threads_in_turns",
        "whole_caps", "grown", "missed_by_a_host",
    ]  # fmt: skip
    answers = run_ranks(ON_RANKS, "several", 2, folder, argument=(url(folder), names))
    return {name: [answer[name] for answer in answers] for name in names}


def test_every_mode_is_right_call_after_call_operators_in_turns(pair: Pair) -> None:
    are_right(pair["every_mode"], MODES)


def test_it_does_not_matter_where_a_shard_lies(pair: Pair) -> None:
    for errors in pair["shards_anywhere"]:
        assert len(errors) == 3 * len(MODES["all_gather_gemm"])
        assert max(errors.values()) < WORST, errors


def test_sizes_and_contexts_of_compiled_functions_may_change_and_caps_have_points(pair: Pair) -> None:
    assert all(len(errors) == 6 and max(errors) < WORST for errors in pair["grown"]), pair["grown"]
    assert pair["whole_caps"] == [[True] * 3] * 2


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


def test_threads_may_share_a_context(pair: Pair, alone: dict[str, Any]) -> None:
    for found in pair["threads_in_turns"]:
        assert len(found["errors"]) == 8
        assert max(found["errors"]) < WORST
        assert found["same configs"]
    assert alone["threads_at_once"] < WORST


def test_a_call_keeps_no_memory_of_its_callers(alone: dict[str, Any]) -> None:
    assert alone["memory_is_free"]


def test_a_row_of_a_matrix_is_a_matrix(alone: dict[str, Any]) -> None:
    errors = alone["rows_of_a_matrix"]
    assert len(errors) == len(MODES["gemm_all_reduce"] - {"bsp", "custom_collective"})  # of one rank
    assert max(errors) < WORST, errors
