"""Corners of the heap's contract: counters that wrap around, waits that time out, memory to the last byte."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from process_ends import left_in_shared_memory, shared_memory
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS

from autotune.errors import HeapError
from autotune.heap import device, status
from autotune.heap.alarm import Alarm

ON_RANKS = str(Path(__file__).parent / "more_on_ranks.py")
TURNS, TICKETS = 12, 32


@pytest.mark.parametrize("gpu", TWO_GPUS)
def test_signals_hand_over_data_and_waits_end(gpu: str, tmp_path: Path) -> None:
    ranks: list[dict[str, Any]] = run_ranks(ON_RANKS, "synchronisation", 2, tmp_path, gpu=gpu)
    for rank, found in enumerate(ranks):
        assert found["ring"] == [[1000 * (1 - rank) + turn] for turn in range(TURNS)]
        assert found["ring status"] == 0
        assert found["ring counter"] == -(1 << 31) + TURNS // 2, "the counter has wrapped around"
        assert found["no wait"] == [[0, 0], 0], "what is there already is not waited for"
        assert found["timed out"] == [[1, 1], 1]
        assert found["hopeless"] == [1, 1]
        assert found["hopeless seconds"] < 300, "once one wait has timed out, the others do not spin to their limit"
    assert ranks[0]["counted"] == ranks[1]["counted"] == 2 * TICKETS
    taken = [ticket for found in ranks for ticket in found["tickets"]]
    assert sorted(taken) == list(range(2 * TICKETS)), "atomic between the processes: every number once"


def test_memory_is_handed_out_to_the_last_byte_and_peers_see_it(tmp_path: Path) -> None:
    for found in run_ranks(ON_RANKS, "bookkeeping", 2, tmp_path):
        size = found["size"]
        assert found["left at first"] == size == (64 << 10) + 24, "the end of the heap is no multiple of the alignment"
        assert found["aligned"] and found["distinct"] and found["empty is free"]
        assert found["all of it"] == [size, 0]
        assert "AUTOTUNE_HEAP_BYTES" in found["one byte more"]
        assert found["after release"] == size
        assert all(found["bad marks"])
        assert found["view"] == [[4, 6], "torch.bfloat16", True]
        assert found["part of a view"] and found["own"]
        assert found["owns"] == [True, True, False, False]
        assert all("contiguous" in message for message in found["not contiguous"]), found["not contiguous"]
        assert "heap.allocate" in found["not on the heap"]


def test_a_heap_that_fits_nowhere_says_so_on_every_rank_and_leaves_nothing(tmp_path: Path) -> None:
    before = shared_memory()
    messages = run_ranks(ON_RANKS, "too_large", 2, tmp_path)
    assert all(f"{1 << 50} bytes" in message for message in messages)
    assert not left_in_shared_memory(before)


def test_memory_that_is_full_on_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    messages = run_ranks(ON_RANKS, "full_on_one_rank", 2, tmp_path)
    assert len(messages) == 2 and all("rank 1" in message for message in messages)


def test_more_ranks_than_a_time_out_can_be_told_to_are_refused() -> None:
    assert device.MOST_TOLD.value == status.MOST_RANKS
    agreement: Any = SimpleNamespace(rank=0, world_size=status.MOST_RANKS + 1)
    with pytest.raises(HeapError, match=str(status.MOST_RANKS)):
        Alarm(agreement, agreement)
