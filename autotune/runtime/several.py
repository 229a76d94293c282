"""Several Bs as one: matrices whose columns lie side by side in memory are columns of one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.launching.gemm import order_of
from autotune.runtime.call import needs_gradient


class GatherOptions(TypedDict, total=False):
    """The options of ``all_gather_gemm``, whose result has a type by its ``b``."""

    scale_a: torch.Tensor | None
    scale_b: torch.Tensor | None
    out_dtype: torch.dtype | None
    fast_accum: bool
    layout: str
    gather_dim: int | None
    rows: Sequence[int] | None
    in_place: bool
    keep_gathered: bool
    epilogue: str
    gate_up: str
    out: torch.Tensor | None
    config: Config | None


def side_by_side(bs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy matrices [k, n] as columns of one, in new memory: what ``all_gather_gemm`` takes as a list.

    They are stored as the first one is, row by row or as its transpose. Raises InvalidProblem where they do not fit.
    """
    with torch.no_grad():
        whole = copied(bs)
    return list(whole.split([b.shape[1] for b in bs], dim=1))


def copied(bs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate into one matrix; gradients go to each B. Raises InvalidProblem where they do not fit."""
    _check(bs)
    return torch.cat([b.t() for b in bs]).t() if order_of(bs[0]) == "nk" else torch.cat(list(bs), dim=1)


def whole_of(bs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The matrix whose columns these are, one after the other. Raises InvalidProblem where there is none.

    Under ``torch.compile``, where nothing has an address, and where gradients are needed, which go to each B, they are
    copied into one.
    """
    if torch.compiler.is_compiling() or needs_gradient(bs):
        return copied(bs)
    _check(bs)
    if not lie_side_by_side(bs):
        raise InvalidProblem(
            "the Bs do not lie side by side in memory: call autotune.side_by_side once, where the weights are loaded, "
            "and pass what it returns"
        )
    first = bs[0]
    return first.as_strided((first.shape[0], sum(b.shape[1] for b in bs)), first.stride())


def lie_side_by_side(bs: Sequence[torch.Tensor]) -> bool:
    """True if matrices are the columns of one, one after the other."""
    first, place = bs[0], bs[0].data_ptr()
    for b in bs:
        alike = b.stride() == first.stride() and b.is_neg() == first.is_neg()
        if not alike or b.data_ptr() != place or not _same_memory(b, first):
            return False
        place += b.shape[1] * b.stride(1) * b.element_size()
    return True


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _check(bs: Sequence[torch.Tensor]) -> None:
    said = ", ".join(f"{list(b.shape)} {b.dtype} on {b.device}" for b in bs)
    first = bs[0] if bs else None
    if first is None or any(b.dim() != 2 for b in bs):
        raise InvalidProblem(f"Bs: {said or 'none'}; expected at least one matrix")
    if any((b.shape[0], b.dtype, b.device) != (first.shape[0], first.dtype, first.device) for b in bs):
        raise InvalidProblem(f"Bs: {said}; all need the same depth, type and device")
