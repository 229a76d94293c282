"""``moe_dispatch`` and ``moe_dispatch_gemm``: in every mode, whatever the routing is, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from calls import url
from ranks_of_functions import run_ranks
from two_ranks import EVERYWHERE

ON_RANKS = str(Path(__file__).with_name("moe_on_ranks.py"))


@pytest.mark.parametrize("gpu", EVERYWHERE)
def test_a_dispatch_is_right_however_it_is_called(tmp_path: Path, gpu: str) -> None:
    for rank, found in enumerate(run_ranks(ON_RANKS, "calls", 2, tmp_path, gpu=gpu, argument=url(tmp_path))):
        assert found["eager"] and all(found["modes"].values()), found
        assert all(found["gemm modes"].values()), found
        assert found["modes"].keys() - {"bsp"} == {"push", "pull"}
        assert found["gemm modes"].keys() - {"bsp"} == {"push", "pull", "own_collective", "unfused"}
        for way, (first, checked, again, sealed) in found["too many rows"].items():
            alone, everywhere = "InvalidProblem: .*more rows than there is room", "GangError: .*more rows of experts"
            assert re.match(alone if rank == 0 else "no error" if "bsp" in way else everywhere, checked), (way, checked)
            assert again is None or re.match(everywhere if rank else alone, again), (way, again)
            assert rank or sealed, way
            assert re.match(f"no error|{alone}|{everywhere}", first), (way, first)


@pytest.mark.gpu(2)
def test_one_captured_call_is_right_for_a_thousand_routings(tmp_path: Path) -> None:
    """Nothing of a call depends on a number that the host has read."""
    for found in run_ranks(ON_RANKS, "replays", 2, tmp_path, gpu=True, argument=url(tmp_path)):
        modes = {"moe_dispatch": ("push", "pull"), "moe_dispatch_gemm": ("push", "pull", "own_collective", "unfused")}
        assert found == {f"{name} {mode}": 1000 for name, several in modes.items() for mode in several}
