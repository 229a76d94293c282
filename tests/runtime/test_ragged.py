"""Shards of unequal numbers of rows: how many rows the padded ones have, and which calls are refused. No ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.errors import InvalidProblem
from autotune.runtime.folding import capacity, is_ragged, unpadded

SECOND: Any = SimpleNamespace(world_size=3, rank=1)
"""The heap of the second of three ranks."""

A = torch.zeros(5, 4, 8)


@pytest.mark.parametrize(("most", "padded"), [(0, 0), (5, 8), (8, 8), (129, 256), (257, 384)])
def test_few_problems_serve_all_numbers_of_rows(most: int, padded: int) -> None:
    """Powers of two for few rows; multiples of 128, which waste less, for many."""
    assert capacity([0, most, most // 2]) == padded


@pytest.mark.parametrize(("rows", "dim", "padding"), [([5, 5, 5], 0, True), ([3, 4, 4], 1, True), ([4] * 3, 1, False)])
def test_shards_of_such_a_number_need_no_padding(rows: list[int], dim: int, padding: bool) -> None:
    assert is_ragged(rows, SECOND, A, dim, in_place=False) is padding


@pytest.mark.parametrize(
    ("rows", "dim", "in_place"),
    [([5, 5], 0, False), ([4, 4, 5], 0, False), ([5, 5, -1], 0, False), ([5, 8, 5], 2, False), ([6, 5, 5], 0, True)],
)
def test_rows_that_cannot_be_are_refused(rows: list[int], dim: int, in_place: bool) -> None:
    with pytest.raises(InvalidProblem):
        is_ragged(rows, SECOND, A, dim, in_place)


def test_a_given_tensor_fits_the_rows_without_padding() -> None:
    whole = torch.cat([torch.full((8, 4, 8), float(rank)) for rank in range(3)])
    for out in (torch.zeros(14, 4, 8), torch.zeros(13, 4, 8, dtype=torch.float64)):
        with pytest.raises(InvalidProblem):
            unpadded(whole, [6, 5, 2], 0, out)
    right = torch.empty(13, 4, 8)
    assert unpadded(whole, [6, 5, 2], 0, right) is right
    assert right[:, 0, 0].tolist() == [*[0.0] * 6, *[1.0] * 5, *[2.0] * 2]
