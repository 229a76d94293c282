"""The activation of gate and up as a kernel of its own, behind the library's GEMM; maybe with the rounding to fp8."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.primitives.gated import activated
from autotune.kernels.primitives.scales import SIDE, quantised


@triton.jit(do_not_specialize=["blocks"])
def activate_kernel(
    product, c, c_scales, columns, blocks, EPILOGUE: tl.constexpr, HALVES: tl.constexpr, BLOCK: tl.constexpr,
    end=None,
):  # fmt: skip
    """C [rows, columns] = activation(gate) * up of a product [rows, 2 * columns]; ``blocks`` programs for each row.

    With ``c_scales`` [rows, columns / SIDE] in fp8: BLOCK and ``columns`` are multiples of SIDE. With ``end``
    int32 [1] rows from that on are left alone.
    """
    pid = tl.program_id(0)
    row = (pid // blocks).to(tl.int64)
    first = pid % blocks * BLOCK
    column = first + tl.arange(0, BLOCK)
    inside = column < columns
    if end is not None:
        inside = inside & (row < tl.load(end))
    if HALVES:
        gate = tl.load(product + row * 2 * columns + column, mask=inside, other=0.0)
        up = tl.load(product + row * 2 * columns + columns + column, mask=inside, other=0.0)
    else:
        both = 2 * first + tl.arange(0, 2 * BLOCK)
        exist = both < 2 * columns
        if end is not None:
            exist = exist & (row < tl.load(end))
        pairs = tl.load(product + row * 2 * columns + both, mask=exist, other=0.0)
        gate, up = tl.split(tl.reshape(pairs, (BLOCK, 2)))
    value = activated(gate.to(tl.float32), EPILOGUE) * up.to(tl.float32)
    if c_scales is not None:
        parts: tl.constexpr = BLOCK // SIDE
        value, of_parts = quantised(tl.reshape(value, (parts, SIDE)), c.dtype.element_ty)
        value = tl.reshape(value, (BLOCK,))
        part = first // SIDE + tl.arange(0, parts)
        tl.store(c_scales + row * (columns // SIDE) + part, of_parts, mask=part < columns // SIDE)
    tl.store(c + row * columns + column, value.to(c.dtype.element_ty), mask=inside)
