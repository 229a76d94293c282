"""Sizes drawn between tuned ones, and mixtures with uneven ranks against plain torch's two ways."""

from __future__ import annotations

from pathlib import Path

from scripts import run_script

SCRIPT = str(Path(__file__).parents[2] / "bench" / "between.py")


def test_both_ways_of_plain_torch_and_ours_agree_where_ranks_are_uneven_or_empty(tmp_path: Path) -> None:
    done = run_script(
        SCRIPT, "--toy", "--mixtures", "--count", "6", "--db", str(tmp_path / "none.db"), ranks=2
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| toy ")]
    assert len(rows) == 6 and any(", 0 " in row or " 0, " in row for row in rows) and "6 problems, worst" in done.stdout
