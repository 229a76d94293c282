"""Operators within ``torch.compile``: the graph stays whole, results are right, sizes may change."""

from __future__ import annotations

from pathlib import Path

from calls import ON_RANKS, WORST, url
from ranks_of_functions import run_ranks


def test_compiled_functions_are_right_and_sizes_and_contexts_may_change(tmp_path: Path) -> None:
    names = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode", "config")
    arguments = url(tmp_path), ["compiled", "grown"]
    for answers in run_ranks(ON_RANKS, "several", 2, tmp_path, argument=arguments, seconds=270):
        found = answers["compiled"]
        assert found.pop("closed").startswith("InputError: no context with handle")
        assert set(found) == {f"{backend} {name}" for backend in ("eager", "aot_eager") for name in names}
        assert max(found.values()) < WORST, found
        assert len(answers["grown"]) == 9
        assert max(answers["grown"]) < WORST
