"""Several Bs as one: which ones are the columns of one matrix, and which only seem to be."""

from __future__ import annotations

import pytest
import torch

import autotune
from autotune.errors import InvalidProblem
from autotune.runtime.operators.gather import lie_side_by_side, whole_of


def columns(order: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    whole = torch.arange(28.0).view(4, 7) if order == "kn" else torch.arange(28.0).view(7, 4).t()
    return whole, list(whole.split([2, 1, 4], dim=1))


@pytest.mark.parametrize("order", ["kn", "nk"])
def test_copies_side_by_side_keep_the_first_ones_order_and_no_history(order: str) -> None:
    whole, bs = columns(order)
    apart = [(b.clone() if order == "kn" else b.t().clone().t()).requires_grad_() for b in bs]
    made = autotune.side_by_side(apart)
    assert lie_side_by_side(made) and torch.equal(whole_of(made), whole)
    assert whole_of(made).stride() == whole.stride() and not any(b.requires_grad for b in made)


def test_what_only_seems_to_lie_side_by_side_is_told_apart() -> None:
    memory = bytearray(64)
    neighbours = [torch.frombuffer(memory, dtype=torch.float32, count=8, offset=at).view(2, 4).t() for at in (0, 32)]
    assert neighbours[0].data_ptr() + 32 == neighbours[1].data_ptr()
    assert not lie_side_by_side(neighbours), "two allocations, of which either may be given back"
    one = torch.frombuffer(memory, dtype=torch.float32).view(4, 4).t()
    assert lie_side_by_side(one.split(2, dim=1))
    left, right = one.split(2, dim=1)
    assert not lie_side_by_side([left, torch._neg_view(right)]), "torch has yet to change the sign of one"
    flat = torch.arange(32.0)
    assert lie_side_by_side([flat.as_strided((2, 2), (1, 4)), flat[8:].as_strided((2, 2), (1, 4))])
    assert not lie_side_by_side([flat.as_strided((2, 2), (1, 4)), flat[8:].as_strided((2, 2), (1, 8))])
    assert not lie_side_by_side([flat.as_strided((2, 2), (1, 4)), flat[2:].as_strided((2, 2), (1, 4))])


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3, 2), torch.zeros(4, 2, dtype=torch.float16), torch.zeros(4, 2, device="meta"), torch.zeros(4),
    ],
)  # fmt: skip
def test_bs_that_do_not_fit_are_refused_by_both(other: torch.Tensor) -> None:
    for made in (whole_of, autotune.side_by_side):
        for bs in ([torch.zeros(4, 2), other], []):
            with pytest.raises(InvalidProblem):
                made(bs)
