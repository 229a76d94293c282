"""Operators within ``torch.compile``: the graph stays whole, results are right, sizes may change."""

from __future__ import annotations

from pathlib import Path

from calls import ON_RANKS, WORST, url
from ranks_of_functions import run_ranks


def test_compiled_functions_are_right(tmp_path: Path) -> None:
    names = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode", "config")
    for found in run_ranks(ON_RANKS, "compiled", 2, tmp_path, argument=url(tmp_path)):
        assert found.pop("closed").startswith("InputError: no context with handle")
        assert set(found) == {f"{backend} {name}" for backend in ("eager", "aot_eager") for name in names}
        assert max(found.values()) < WORST, found


def test_sizes_and_context_of_a_compiled_function_may_change(tmp_path: Path) -> None:
    for errors in run_ranks(ON_RANKS, "grown", 2, tmp_path, argument=url(tmp_path)):
        assert len(errors) == 9
        assert max(errors) < WORST
