"""The sums by token before the library's collective, in two kernels as torch.compile would write them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def list_rows_kernel(pairs, end, places, ROWS: tl.constexpr):
    """Note each of the rows before ``end`` int32 [1] at its pair: ``places`` int32 [pairs of all tokens]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < tl.load(end)
    pair = tl.load(pairs + row, mask=exists, other=0)
    tl.store(places + pair, row, mask=exists)


@triton.jit(do_not_specialize=["blocks"])
def sum_rows_kernel(rows, places, gates, sums, columns, blocks, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    """Sums [tokens, columns] = rows [.., columns] of a token's ``places`` int32 [tokens, CHOICES], -1 for none, times
    the rows' gates, added in fp32 in that order; ``blocks`` programs for each token.
    """
    token = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(CHOICES):
        row = tl.load(places + token * CHOICES + choice).to(tl.int64)
        gate = tl.load(gates + row, mask=row >= 0, other=0.0)
        value = tl.load(rows + row * columns + column, mask=(row >= 0) & (column < columns), other=0.0)
        acc += gate * value.to(tl.float32)
    tl.store(sums + token * columns + column, acc.to(sums.dtype.element_ty), mask=column < columns)
