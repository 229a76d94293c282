"""Lengths of one problem share memory: right in any order of calls and replays, and little of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_of_functions import run_ranks

LENGTHS = str(Path(__file__).with_name("lengths_on_ranks.py"))


def test_lengths_in_any_order_are_right_in_every_mode(tmp_path: Path) -> None:
    for wrong in run_ranks(LENGTHS, "in_any_order", 2, tmp_path, argument=1):
        assert not wrong


@pytest.mark.gpu(2)
def test_graphs_of_several_lengths_stay_valid_in_every_mode(tmp_path: Path) -> None:
    for wrong in run_ranks(LENGTHS, "captured", 2, tmp_path, gpu=True, argument=1):
        assert not wrong
