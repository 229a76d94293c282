"""Operators on GPUs: captured graphs, every mode in turns, compiled functions, missed calls.

    pytest tests/runtime/operators/test_gpus.py

The first run compiles some sixty kernels, which takes minutes; later ones find them in Triton's cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import MODES, ON_RANKS, are_right, found_out_and_mended, lied_to_nobody, url, wrong_of
from ranks_of_functions import run_ranks

pytestmark = pytest.mark.parametrize(
    "world_size", [pytest.param(2, marks=pytest.mark.gpu(2)), pytest.param(4, marks=pytest.mark.gpu(4))]
)


def on_gpus(function: str, world_size: int, folder: Path, argument: Any, file: str = ON_RANKS) -> list[Any]:
    return run_ranks(file, function, world_size, folder, gpu=True, argument=argument)


@pytest.mark.parametrize("name", MODES)
def test_captured_calls_are_right_in_every_one_of_a_thousand_replays(
    tmp_path: Path, world_size: int, name: str
) -> None:
    are_right(on_gpus("replayed", world_size, tmp_path, (url(tmp_path), name)), {name: MODES[name]})


def test_every_mode_is_right_call_after_call_operators_in_turns(tmp_path: Path, world_size: int) -> None:
    are_right(on_gpus("every_mode", world_size, tmp_path, url(tmp_path)), MODES)


def test_it_does_not_matter_where_a_shard_lies(tmp_path: Path, world_size: int) -> None:
    for errors in on_gpus("shards_anywhere", world_size, tmp_path, url(tmp_path)):
        assert not wrong_of(errors, 3 * len(MODES["all_gather_gemm"]))


@pytest.mark.parametrize("how", ["missed_backward", "missed_graph"])
def test_what_a_rank_comes_to_too_late_has_no_wrong_results(tmp_path: Path, world_size: int, how: str) -> None:
    lied_to_nobody(on_gpus(how, world_size, tmp_path, url(tmp_path)))


@pytest.mark.parametrize("missed", ["missed", "missed_by_a_host"])
def test_a_missed_call_is_found_out_and_mended(tmp_path: Path, world_size: int, missed: str) -> None:
    *others, last = on_gpus(missed, world_size, tmp_path, url(tmp_path))
    for said in others:
        assert said["call"] == "no error"
    found_out_and_mended(others, last)
