"""Gate and up side by side in one B: the columns of B that a tile has, and the activation that makes one of two.

A tile has as many columns of the gate as of the up projection, and gives half as many columns of C. HALVES: B is [gate,
up], as a merged linear layer stores it, and a tile has BLOCK_N / 2 columns of each, side by side; the number is the
power of two, up to 16, that divides a half's columns. At 0 they alternate in B, and a tile is BLOCK_N columns as they
come. EPILOGUE: the place of the problem's word in ``EPILOGUES``.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN = tl.constexpr(0)
SWIGLU = tl.constexpr(1)
GEGLU = tl.constexpr(2)
GEGLU_TANH = tl.constexpr(3)
SWIGLU_OAI = tl.constexpr(4)

OAI_LIMIT = tl.constexpr(7.0)
OAI_ALPHA = tl.constexpr(1.702)
"""Of gpt-oss' experts: where gate and up are clamped, and the factor in the gate's sigmoid."""


@triton.jit
def tile_columns(column, columns, BLOCK_N: tl.constexpr, HALVES: tl.constexpr):
    """The columns of B [columns] that make a tile, from ``column`` on; at the edge some are beyond what there is."""
    if HALVES:
        place = tl.arange(0, BLOCK_N)
        half: tl.constexpr = BLOCK_N // 2
        found = column // 2 + tl.where(place < half, place, columns // 2 + place - half)
    else:
        found = column + tl.arange(0, BLOCK_N)
    return found


@triton.jit
def loaded_columns(column, columns, FORM: tl.constexpr):
    """``tile_columns``, with existing columns in place of those beyond the edge, whose results are not stored.

    The compiler does not see that columns of two halves lie side by side, and would load them one by one.
    """
    found = tile_columns(column, columns, FORM.BLOCK_N, FORM.HALVES) % columns
    if FORM.HALVES > 1:
        found = tl.max_contiguous(tl.multiple_of(found, FORM.HALVES), FORM.HALVES)
    return found


@triton.jit
def left_and_right(tile):
    """The left and the right half of a tile's columns."""
    return tl.split(tl.permute(tl.reshape(tile, (tile.shape[0], 2, tile.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def side_by_side(left, right):
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (left.shape[0], 2 * left.shape[1]))


@triton.jit
def activated(gate, up, EPILOGUE: tl.constexpr):
    """activation(gate) * up, in fp32."""
    if EPILOGUE == SWIGLU:
        value = gate * tl.sigmoid(gate) * up
    elif EPILOGUE == GEGLU:
        value = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476)) * up
    elif EPILOGUE == GEGLU_TANH:
        # (1 + tanh(z)) / 2 is the sigmoid of 2 z.
        value = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
    else:
        gate = tl.minimum(gate, OAI_LIMIT, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -OAI_LIMIT, OAI_LIMIT, propagate_nan=tl.PropagateNan.ALL)
        value = gate * tl.sigmoid(gate * OAI_ALPHA) * (up + 1.0)
    return value


@triton.jit
def with_bias(acc, bias, column, columns, FORM: tl.constexpr):
    """A tile's sums plus the bias of B's columns."""
    places = tl.minimum(tile_columns(column, columns, FORM.BLOCK_N, FORM.HALVES), columns - 1)
    return acc + tl.load(bias + places).to(tl.float32)[None, :]


@triton.jit
def gated(acc, FORM: tl.constexpr):
    """A tile of the product, fp32 [BLOCK_M, BLOCK_N], as C has it: activation(gate) * up, [BLOCK_M, BLOCK_N / 2]."""
    if FORM.HALVES:
        gate, up = left_and_right(acc)
    else:
        gate, up = tl.split(tl.reshape(acc, (acc.shape[0], acc.shape[1] // 2, 2)))
    return activated(gate, up, FORM.EPILOGUE)
