"""Under the interpreter a wait in a kernel ends once a peer's process has, whatever its limit of polls."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_of_functions import run_ranks

ON_RANKS = str(Path(__file__).parent / "lost_peer_on_ranks.py")


@pytest.mark.parametrize(("wait", "ranks"), [("raw_wait", 2), ("raw_wait", 3), ("ll_wait_alone", 2)])
def test_a_wait_for_a_process_that_has_ended_ends(wait: str, ranks: int, tmp_path: Path) -> None:
    *others, _ = run_ranks(ON_RANKS, wait, ranks, tmp_path, argument=str(tmp_path))
    assert others == [3] * (ranks - 1), "each left its mark, beside the one that was there"


def test_a_call_that_a_dead_peer_misses_raises(tmp_path: Path) -> None:
    told, _ = run_ranks(ON_RANKS, "in_an_operator", 2, tmp_path, argument=str(tmp_path))
    assert "timed out" in told


def test_watching_peers_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    for opened, closed, again, after in run_ranks(ON_RANKS, "descriptors", 2, tmp_path, argument=str(tmp_path)):
        assert opened == again > closed == after
