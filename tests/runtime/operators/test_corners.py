"""Operators in corners: memory used before, errors of one rank alone, gradients, overlapping tensors, closing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import MODES, url, wrong_of
from ranks_of_functions import run_ranks
from two_ranks import EVERYWHERE, GPUS

ON_RANKS = str(Path(__file__).with_name("corners_on_ranks.py"))

Pair = dict[str, list[Any]]

RIGHT = {
    "used_memory": 12, "words_after_release": 6, "scratch_is_clear": 100,
    "empty_caches": len(MODES["flash_decode"] - {"bsp"}),
}  # fmt: skip
"""The least number of answers of functions that give errors, or True."""
ENDS = ["closed_again_and_again", "left_by_an_error", "interrupted_alone"]
NAMES = [*RIGHT, "one_ranks_errors", "written", "overlaps", *ENDS]


@pytest.fixture(scope="module", params=EVERYWHERE)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    answers = run_ranks(ON_RANKS, NAMES, 2, folder, gpu=request.param, argument=url(folder))
    return {name: [answer[name] for answer in answers] for name in NAMES}


@pytest.mark.parametrize(("name", "least"), RIGHT.items())
def test_what_memory_or_a_cache_lacks_or_holds_changes_no_result(pair: Pair, name: str, least: int) -> None:
    for found in pair[name]:
        assert not wrong_of(found, least), name


def test_an_error_of_one_rank_at_a_first_call_is_every_ranks_and_leaves_nothing_behind(pair: Pair) -> None:
    planted = {f"{name} {mode}" for name, modes in MODES.items() for mode in modes - {"bsp"}}
    for told in pair["one_ranks_errors"]:
        assert told.pop("right") == "True" and set(told) == planted
        assert all(each.startswith("out of memory: planted") for each in told.values())


def test_autograd_sees_what_is_written(pair: Pair) -> None:
    for told in pair["written"]:
        assert told["version"] == 1 and "modified by an inplace operation" in told["backward"]


def test_an_out_that_overlaps_an_operand_is_refused(pair: Pair) -> None:
    for told in pair["overlaps"]:
        fine = {name for name, each in told.items() if each == "no error"}
        assert fine == {"first beside", "later beside"}
        assert all(each.startswith("InvalidProblem") for name, each in told.items() if name not in fine)


def test_a_closed_context_gives_everything_back_at_once(pair: Pair) -> None:
    for first, *later in pair["closed_again_and_again"]:
        # A library may start a thread late, as CUDA does; one a context would be two or three from count to count.
        for seen in later:
            assert seen["descriptors"] == first["descriptors"], (first, later)
            assert seen["threads"] <= first["threads"] + 1, (first, later)


def test_an_error_on_one_rank_leaves_no_other_one_waiting(pair: Pair) -> None:
    gone, told = pair["left_by_an_error"]
    assert gone["told"] == "ZeroDivisionError: planted"
    assert told["told"].startswith("GangError") and "ZeroDivisionError: planted" in told["told"]
    for answer in (gone, told):
        assert answer["seconds"] < 300
        assert all(answer["after"][kind] <= count for kind, count in answer["before"].items())


@pytest.mark.parametrize("gpu", GPUS)
def test_check_sees_calls_on_every_stream(tmp_path: Path, gpu: str) -> None:
    *others, last = run_ranks(ON_RANKS, "checked_from_elsewhere", 2, tmp_path, gpu=gpu, argument=url(tmp_path))
    for told in others:
        assert told["check"].startswith("GangError: a wait in a kernel timed out")
    for told in (*others, last):
        assert told["captured"].startswith("InputError")


@pytest.mark.parametrize("gpu", GPUS)
def test_a_closed_context_gives_the_gpus_memory_back(tmp_path: Path, gpu: str) -> None:
    for found in run_ranks(ON_RANKS, "gpu_memory_given_back", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert found["taken"] < 64 << 20
        first, last = found["held"]
        assert first == last


def test_a_rank_that_is_interrupted_in_a_first_call_leaves_none_waiting(pair: Pair) -> None:
    others, last = pair["interrupted_alone"]
    assert last[0].startswith("KeyboardInterrupt")
    assert all(each.startswith("GangError") and "KeyboardInterrupt" in each for each in [last[1], *others[:2]])
    assert last[2:] == others[2:] == ["64.0", "64.0"], "another context"
