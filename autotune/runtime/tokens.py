"""A rank's tokens as kernels take them: as many as any rank has, and with int32 numbers of experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from autotune.errors import InvalidProblem
from autotune.runtime.call import Form

Tensor = torch.Tensor

INT32 = torch.iinfo(torch.int32)
INTEGERS = {torch.int8, torch.int16, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
"""The types of ids that kernels do not read."""


def expert_ids(ids: Tensor) -> Tensor:
    """Ids of any integer type in int32: a number that no int32 holds stays the number of no expert. What is something
    else stays as it is, to be refused.
    """
    if not isinstance(ids, Tensor) or ids.dtype not in INTEGERS:
        return ids
    return ids.to(torch.int64).clamp(INT32.min, INT32.max).to(torch.int32)


def lacking(rows: Any, tokens: int | None) -> int:
    """The number of tokens by which this rank, with one for each of ``rows``, has fewer than ``tokens``, the most of
    any rank; 0 without that. Raises InvalidProblem where it has more.
    """
    if tokens is None or not isinstance(rows, Tensor) or not rows.dim():
        return 0
    if rows.shape[0] > tokens:
        raise InvalidProblem(f"this rank has {rows.shape[0]} tokens, more than tokens={tokens}, the most of any rank")
    return tokens - rows.shape[0]


def longer(tensor: Any, more: int, value: int = 0) -> Any:
    """A matrix with so many more rows, of this value, contiguous. What is no matrix stays as it is, to be refused."""
    if not isinstance(tensor, Tensor) or tensor.dim() != 2:
        return tensor
    if not more:
        return tensor.contiguous()
    if tensor.is_floating_point() and tensor.element_size() == 1:  # which torch does not fill
        return longer(tensor.view(torch.uint8), more).view(tensor.dtype)
    return F.pad(tensor, (0, 0, 0, more), value=value)


def as_the_most(
    tokens: int | None, x: Tensor, ids: Tensor, gates: Tensor, scale_x: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """A dispatch's operands with as many tokens as the rank with the most has: the added ones have no experts. Operands
    that do not fit each other fit no better.
    """
    ids = expert_ids(ids)
    more = lacking(x, tokens)
    if not more:
        return x, ids, gates, scale_x
    return longer(x, more), longer(ids, more, -1), longer(gates, more), longer(scale_x, more)


def ids_of_the_most(ids: Tensor, tokens: int | None) -> tuple[Tensor, int]:
    """A combine's ids for as many tokens as the rank with the most has, and how many of them this rank lacks."""
    ids = expert_ids(ids)
    more = lacking(ids, tokens)
    return longer(ids, more, -1) if more else ids, more


def own_rows(sums: Tensor, more: int, out: Tensor | None) -> Tensor:
    """The sums of the tokens that this rank has, without the ``more`` last ones."""
    own = sums[: sums.shape[0] - more]
    if out is None:
        return own
    return Form(tuple(own.shape), own.dtype, own.device).fitting(out).copy_(own)
