"""Shards of unequal numbers of rows: how many rows the padded ones have. No ranks."""

from __future__ import annotations

from autotune.runtime.folding import capacity


def test_few_problems_serve_all_numbers_of_rows_and_many_rows_are_little_wasted() -> None:
    padded = {rows: capacity([0, rows, rows // 2]) for rows in range(2000)}
    assert all(0 <= most - rows < min(rows, 128) for rows, most in padded.items() if rows)
    assert len(set(padded.values())) <= 8 + 2000 // 128 + 1
