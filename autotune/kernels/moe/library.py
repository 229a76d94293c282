"""The library's grouped GEMM: torch's where it has one for the element type, a loop over experts elsewhere."""

from __future__ import annotations

from typing import Any

import torch

GROUPED: Any = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def has_grouped(dtype: str, on_gpu: bool) -> bool:
    """True if torch multiplies groups of this element type without a word to the host."""
    return on_gpu and dtype == "bf16" and GROUPED is not None


def grouped_product(rows: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Each row [.., K] times its expert's B [L, K, N]. Rows from offsets[L] on are undefined."""
    if has_grouped("bf16" if rows.dtype is torch.bfloat16 else "", rows.is_cuda):
        product: torch.Tensor = GROUPED(rows, b, offs=offsets[1:])
        return product
    product = rows.new_empty((rows.shape[0], b.shape[2]))
    bounds = offsets.tolist()
    for expert, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        if end > begin:
            torch.mm(rows[begin:end], b[expert], out=product[begin:end])
    return product
