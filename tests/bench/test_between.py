"""Sizes drawn between tuned ones, and mixtures with uneven ranks against plain torch's two ways."""

from __future__ import annotations

from pathlib import Path

import between
import pytest
from scripts import run_script

SCRIPT = str(Path(__file__).parents[2] / "bench" / "between.py")


@pytest.mark.parametrize("ranks", [2, 4])
def test_mixtures_are_drawn_with_a_seed_even_uneven_and_all_on_one_rank(ranks: int) -> None:
    found = between.drawn_mixtures(48, 46, ranks)
    assert found == between.drawn_mixtures(48, 46, ranks) != between.drawn_mixtures(48, 47, ranks)
    assert all(len(each.tokens) == ranks and 1 <= max(each.tokens) <= 64 for each in found)
    kinds = {(each.workload, each.exponent, (min(each.tokens) > 0) + (len({*each.tokens}) == 1)) for each in found}
    assert len(kinds) == 2 * 2 * 3, "every operator and routing, none of them only even"


def test_both_ways_of_plain_torch_and_ours_agree_where_ranks_are_uneven_or_empty(tmp_path: Path) -> None:
    done = run_script(
        SCRIPT, "--toy", "--mixtures", "--count", "6", "--db", str(tmp_path / "none.db"), ranks=2
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| toy ")]
    assert len(rows) == 6 and any(", 0 " in row or " 0, " in row for row in rows) and "6 problems, worst" in done.stdout
