"""Sentinel words arrive whatever is in them, launch after launch, whether one program reads them or several."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_of_functions import run_ranks
from two_ranks import EVERYWHERE

ON_RANKS = str(Path(__file__).with_name("sentinel_on_ranks.py"))


@pytest.mark.parametrize("gpu", EVERYWHERE)
def test_what_is_sent_arrives_and_leaves_empty_words_behind(tmp_path: Path, gpu: str) -> None:
    for found in run_ranks(ON_RANKS, "exchanged", 2, tmp_path, gpu=gpu):
        assert len(found) == 6
        for kernel, counted in found.items():
            assert counted["right"] == counted["all"], (kernel, counted)
            assert counted["full"] == counted["left"], (kernel, counted)
            assert counted["late"] == 0


@pytest.mark.parametrize("gpu", EVERYWHERE)
def test_a_word_that_nobody_sends_times_out(tmp_path: Path, gpu: str) -> None:
    assert run_ranks(ON_RANKS, "missing", 2, tmp_path, gpu=gpu) == [1, 0]
