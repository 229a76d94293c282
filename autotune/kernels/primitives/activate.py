"""What follows a GEMM as a kernel of its own, behind the library's: experts' biases, the activation of gate and up, the
rounding to fp8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.primitives.gated import PLAIN, activated
from autotune.kernels.primitives.scales import SIDE, quantised


@triton.jit
def _plus(row, bias, columns, inside):
    """These columns of a row, fp32, with the bias where there is one."""
    value = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    return value


@triton.jit(do_not_specialize=["blocks"])
def activate_kernel(
    product, c, c_scales, columns, blocks, EPILOGUE: tl.constexpr, HALVES: tl.constexpr, BLOCK: tl.constexpr,
    offsets=None, bias=None, EXPERTS: tl.constexpr = 1,
):  # fmt: skip
    """C [rows, columns] = activation(gate) * up of a product [rows, 2 * columns], or, PLAIN, of one [rows, columns] the
    product; ``blocks`` programs for each row.

    With ``c_scales`` [rows, columns / SIDE] in fp8: BLOCK and ``columns`` are multiples of SIDE. With ``offsets``
    int32 [EXPERTS + 1] of experts' rows those behind the last are left alone; ``bias`` has a row for each expert, as
    wide as the product.
    """
    pid = tl.program_id(0)
    row = (pid // blocks).to(tl.int64)
    first = pid % blocks * BLOCK
    column = first + tl.arange(0, BLOCK)
    inside = column < columns
    if offsets is not None:
        inside = inside & (row < tl.load(offsets + EXPERTS))
    if bias is not None:
        experts = tl.arange(0, triton.next_power_of_2(EXPERTS))
        ends = tl.load(offsets + 1 + experts, mask=experts < EXPERTS, other=2**31 - 1)
        wide = columns if EPILOGUE == PLAIN else 2 * columns
        bias += tl.sum((ends <= row).to(tl.int64), axis=0) * wide
    if EPILOGUE == PLAIN:
        value = _plus(product + row * columns, bias, column, inside)
    elif HALVES:
        gate = _plus(product + row * 2 * columns, bias, column, inside)
        up = _plus(product + row * 2 * columns, bias, columns + column, inside)
        value = activated(gate, up, EPILOGUE)
    else:
        both = 2 * first + tl.arange(0, 2 * BLOCK)
        exist = both < 2 * columns
        if offsets is not None:
            exist = exist & (row < tl.load(offsets + EXPERTS))
        gate, up = tl.split(tl.reshape(_plus(product + row * 2 * columns, bias, both, exist), (BLOCK, 2)))
        value = activated(gate, up, EPILOGUE)
    if c_scales is not None:
        parts: tl.constexpr = BLOCK // SIDE
        value, of_parts = quantised(tl.reshape(value, (parts, SIDE)), c.dtype.element_ty)
        value = tl.reshape(value, (BLOCK,))
        part = first // SIDE + tl.arange(0, parts)
        tl.store(c_scales + row * (columns // SIDE) + part, of_parts, mask=part < columns // SIDE)
    tl.store(c + row * columns + column, value.to(c.dtype.element_ty), mask=inside)
