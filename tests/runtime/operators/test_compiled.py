"""Operators within ``torch.compile``: sizes and contexts may change, and a closed context is told."""

from __future__ import annotations

from pathlib import Path

from calls import WORST, url
from ranks_of_functions import run_ranks

ON_RANKS = str(Path(__file__).with_name("compiled_on_ranks.py"))


def test_sizes_and_contexts_of_compiled_functions_may_change(tmp_path: Path) -> None:
    for found in run_ranks(ON_RANKS, "grown", 2, tmp_path, argument=url(tmp_path)):
        assert len(found["errors"]) == 6 and max(found["errors"]) < WORST
        assert found["closed"].startswith("InputError: no context with handle")
