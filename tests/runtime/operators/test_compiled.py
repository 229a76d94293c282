"""Operators within ``torch.compile``: the graph stays whole, results are right, sizes may change."""

from __future__ import annotations

from pathlib import Path

from calls import WORST, url
from ranks_of_functions import run_ranks

ON_RANKS = str(Path(__file__).with_name("compiled_on_ranks.py"))


def test_compiled_functions_are_right_and_sizes_and_contexts_may_change(tmp_path: Path) -> None:
    names = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode", "config")
    for answers in run_ranks(ON_RANKS, "compiled_and_grown", 2, tmp_path, argument=url(tmp_path)):
        found = answers["compiled"]
        assert found.pop("closed").startswith("InputError: no context with handle")
        assert set(found) == {*names}
        assert max(found.values()) < WORST, found
        assert len(answers["grown"]) == 6
        assert max(answers["grown"]) < WORST
