"""The library's grouped GEMM: torch's where it has one for the operands, a loop over experts elsewhere."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from autotune.dtypes import SCALE_BLOCK
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.moe.grouped_launch import EPILOGUES, GroupedOperands, grouped_gemm
from autotune.kernels.moe.grouped_space import GroupedTile
from autotune.kernels.primitives.activate import activate_kernel
from autotune.machine import machine

GROUPED: Any = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
SCALED_GROUPED: Any = getattr(torch, "_scaled_grouped_mm", None)

OF_BLOCKS = GroupedTile(
    mode="bsp", block_m=64, block_n=128, block_k=128, group_m=8, num_warps=4, num_stages=3, loads="pointer",
    swap_ab=False, programs_per_unit=2,
)  # fmt: skip
"""No library multiplies groups with scales by blocks: ours does, alone and untuned."""

FEW_ROWS = 256
"""Rows of an expert, were all to have as many, up to which a tile has 64; with more, in two parts, 128."""

FOLLOWING = 1024
"""Elements of C that a program of what follows the library's GEMM computes."""


def has_grouped(dtype: torch.dtype, on_gpu: bool) -> bool:
    """True if torch multiplies groups of this element type, without scales, without a word to the host."""
    return on_gpu and dtype is torch.bfloat16 and GROUPED is not None


def grouped_product(operands: GroupedOperands) -> torch.Tensor:
    """Each of the laid-out rows times its expert's B, bf16 of fp8, and nothing that follows. Rows from offsets[L] on
    are undefined.
    """
    rows, b, offsets = operands.a, operands.b, operands.offsets
    if operands.scale_a is not None and operands.scale_b is not None:
        return _scaled_product(operands, operands.scale_a, operands.scale_b)
    if has_grouped(rows.dtype, rows.is_cuda):
        product: torch.Tensor = GROUPED(rows, b, offs=offsets[1:])
        return product
    return _one_by_one(rows, b, offsets)


def follow(product: torch.Tensor, c: torch.Tensor, operands: GroupedOperands) -> None:
    """C, which may be the product itself: each row of a grouped product plus its expert's bias, then the epilogue."""
    rows, columns = c.shape
    if rows:
        block = min(FOLLOWING, 1 << (columns - 1).bit_length())
        blocks = math.ceil(columns / block)
        activate_kernel[(rows * blocks,)](
            product, c, None, columns, blocks, EPILOGUES[operands.epilogue], operands.halves, block, operands.offsets,
            operands.bias, len(operands.b),
        )  # fmt: skip


def _scaled_product(operands: GroupedOperands, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    rows, b, offsets = operands.a, operands.b, operands.offsets
    on_cuda = rows.is_cuda and torch.version.cuda is not None
    if on_cuda and operands.scales == "row" and SCALED_GROUPED is not None:
        product: torch.Tensor = SCALED_GROUPED(
            rows, b, scale_a.view(-1), scale_b.squeeze(1), offs=offsets[1:], out_dtype=torch.bfloat16,
            use_fast_accum=operands.fast_accum,
        )  # fmt: skip
        return product
    if on_cuda:
        product = rows.new_empty((rows.shape[0], b.shape[2]), dtype=torch.bfloat16)
        here, tile = machine(), OF_BLOCKS
        if here.has_tma and rows.shape[1] % SCALE_BLOCK == 0:
            few = rows.shape[0] <= FEW_ROWS * b.shape[0]
            tile = dataclasses.replace(tile, loads="tma", block_m=64 if few else 128)
        alone = dataclasses.replace(operands, bias=None, epilogue="none", halves=False)
        grouped_gemm(tile, alone, product, here.compute_units).run()
        return product
    wide_b = torch.stack([dequantised(*pair) for pair in zip(b, scale_b, strict=True)])
    return _one_by_one(dequantised(rows, scale_a), wide_b, offsets).to(torch.bfloat16)


def _one_by_one(rows: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Expert by expert, by offsets that the host reads."""
    product = rows.new_empty((rows.shape[0], b.shape[2]))
    bounds = offsets.tolist()
    for expert, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        if end > begin:
            torch.mm(rows[begin:end], b[expert], out=product[begin:end])
    return product
