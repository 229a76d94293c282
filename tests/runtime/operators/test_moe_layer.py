"""``moe_combine`` and ``moe_gemm_combine`` behind a dispatch: a whole mixture of experts, whatever the routing is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from calls import url
from ranks_of_functions import run_ranks
from two_ranks import EVERYWHERE

ON_RANKS = str(Path(__file__).with_name("moe_layer_on_ranks.py"))
COMBINE = {"push", "pull", "one_shot"}
MODES = {"moe_combine": COMBINE, "moe_gemm_combine": COMBINE | {"custom_collective", "unfused"}}
WORST = 2e-2


@pytest.mark.parametrize("gpu", EVERYWHERE)
def test_a_mixture_of_experts_is_right_however_it_is_called(tmp_path: Path, gpu: str) -> None:
    for rank, found in enumerate(run_ranks(ON_RANKS, "calls", 2, tmp_path, gpu=gpu, argument=url(tmp_path))):
        assert max(found[way] for way in ("compiled", "beyond")) < WORST, found
        ways = found["too many rows"]
        assert all(ways.values()), ways
        assert len(ways) in (0, 2 * (5 + 7)), "the library's two ways to dispatch, and each to combine"
        assert found["rows left out"] is not False
        for way, (first, checked, again, sealed) in found["too many"].items():
            alone, everywhere = "InvalidProblem: .*more rows than there is room", "GangError: .*more rows of experts"
            assert re.match(alone if rank == 0 else "no error" if "bsp" in way else everywhere, checked), (way, checked)
            assert again is None or re.match(everywhere if rank else alone, again), (way, again)
            assert rank or sealed, way
            assert re.match(f"no error|{alone}|{everywhere}", first), (way, first)
        for name, modes in MODES.items():
            assert found[name].keys() - {"bsp"} == modes
            for mode, (error, same) in found[name].items():
                assert error < WORST and (same or mode == "bsp"), (name, mode, error, same)


@pytest.mark.gpu(2)
def test_one_captured_layer_is_right_for_a_thousand_routings(tmp_path: Path) -> None:
    """Nothing of a call depends on a number that the host has read."""
    for found in run_ranks(ON_RANKS, "replays", 2, tmp_path, gpu=True, argument=url(tmp_path)):
        assert set(found.values()) == {1000}, found
        for place, modes in enumerate(({"push", "pull", "custom_collective", "unfused"}, MODES["moe_gemm_combine"])):
            assert {each.split()[place] for each in found} == modes
