"""Device code of all-reduce + residual + RMSNorm: one kernel, one launch, whatever the mode.

A block is BLOCK_M whole rows. A program sends this rank's part of a block, or SENDERS programs do, a range of columns
each; how it is summed: ``primitives/all_reduce.py``. Then every rank adds the residual and norms for itself: it needs
all rows.

Launch after launch, and no wait starves its producer: as in GEMM + all-reduce (``gemm_all_reduce/device.py``), with
blocks in the place of tiles. Programs that only send wait for nothing and come before all others.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.all_reduce import Block, Boxes, Exchange, share_part, summed
from autotune.kernels.primitives.counters import finish_unordered, read_epoch
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.scales import quantised
from autotune.kernels.primitives.tiles import Output, put_tile


@triton.jit
def load_rows(x, row, M, column, N, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """Rows from ``row`` and columns from ``column`` on of x [M, N], zero beyond its edge: [BLOCK_M, WIDTH]."""
    rows, columns = tl.arange(0, BLOCK_M), column + tl.arange(0, WIDTH)
    # Rows are compared as in ``inside_block``: another form of the mask would be computed again, 1 % of a small call.
    inside = (rows[:, None] < M - row) & (columns[None, :] < N)
    return tl.load(from_row(x, row, N) + rows[:, None] * N + columns[None, :], mask=inside, other=0.0)


@triton.jit
def from_row(x, row, N):
    """Where a row of x [.., N] begins."""
    return x + tl.cast(row, tl.int64) * N


Results = namedtuple("Results", "normed total scales")
"""The norm and the total [M, N]; scales of a norm in fp8, fp32 [M, 1] or [M, N / 128], or None."""


@triton.jit
def add_and_norm(acc, residual, weight, results, row, M, N, eps, TYPE: tl.constexpr, GROUP: tl.constexpr):
    """Store acc + residual (acc fp32 [BLOCK_M, BLOCK_N], zero from column N on), and its RMSNorm; as fp8 with a scale
    for each GROUP of a row's columns.
    """
    acc = (acc + residual.to(tl.float32)).to(TYPE).to(tl.float32)
    put_tile(acc, from_row(results.total, row, N), 0, 0, M - row, N)
    root = tl.rsqrt(tl.cast(N, tl.float32))  # its square is 1 / N: a division takes nine instructions more
    scale = tl.rsqrt(tl.sum(acc * acc, axis=1) * (root * root) + eps)
    value = acc * scale[:, None] * weight.to(tl.float32)
    if results.scales is not None:
        PARTS: tl.constexpr = acc.shape[1] // GROUP
        parts = tl.reshape(value, (acc.shape[0] * PARTS, GROUP))
        parts, of_parts = quantised(parts, results.normed.dtype.element_ty)
        value = tl.reshape(parts, acc.shape)
        columns = tl.cdiv(N, GROUP)
        of_rows = tl.reshape(of_parts, (acc.shape[0], PARTS))
        put_tile(of_rows, from_row(results.scales, row, columns), 0, 0, M - row, columns)
    put_tile(value, from_row(results.normed, row, N), 0, 0, M - row, N)


@triton.jit(do_not_specialize=["M", "rank", "spin_limit"])
def all_reduce_norm_kernel(
    x, residual, weight, normed, total, scales, inbox, sums, M, N, eps, rank,
    heap_bases, epoch_counter, arrivals, returns, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr,
    MODE: tl.constexpr, PROTOCOL: tl.constexpr, SENDERS: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Total [M, N] = sum over ranks of x [M, N] + residual; normed = its RMSNorm * weight [N]. All are of TYPE, but for
    a norm in fp8, which has scales.

    BLOCK_N is the power of two from N on. With SENDERS, as many programs for each block come first and only send.
    """
    pid = tl.program_id(0)
    blocks = tl.cdiv(M, BLOCK_M)
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    boxes = Boxes(inbox, sums, arrivals, returns)
    SIGNALS: tl.constexpr = 1 if SENDERS == 0 else SENDERS
    EXCHANGE: tl.constexpr = known(Exchange, TYPE, WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N, SIGNALS)
    epoch = read_epoch(epoch_counter)
    sending = blocks * SENDERS
    if pid < sending:
        if SENDERS > 0:
            WIDTH: tl.constexpr = BLOCK_N // SENDERS
            number, column = pid // SENDERS, pid % SENDERS * WIDTH
            row = number * BLOCK_M
            part = load_rows(x, row, M, column, N, BLOCK_M, WIDTH)
            share_part(part, Block(number, blocks, M - row, N, N), epoch, boxes, peers, EXCHANGE, column)
        finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
    else:
        row = (pid - sending) * BLOCK_M
        block = Block(pid - sending, blocks, M - row, N, N)
        if SENDERS == 0:
            share_part(load_rows(x, row, M, 0, N, BLOCK_M, BLOCK_N), block, epoch, boxes, peers, EXCHANGE)
        # Fetched before the wait, for they hang on no peer.
        own, scale = load_rows(residual, row, M, 0, N, BLOCK_M, BLOCK_N), load_rows(weight, 0, 1, 0, N, 1, BLOCK_N)
        acc = summed(Output(None, M, N), row, 0, block, epoch, boxes, peers, EXCHANGE)
        in_vain = heap.timed_out(status)
        add_and_norm(acc, own, scale, Results(normed, total, scales), row, M, N, eps, TYPE, GROUP)
        finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
        heap.seal_if(in_vain, normed, tl.cast(M, tl.int64) * N, total, BY_TMA=False)
        if scales is not None:
            heap.seal_if(in_vain, scales, M * tl.cdiv(N, GROUP), BY_TMA=False)


@triton.jit(do_not_specialize=["M"])
def add_norm_kernel(
    x, residual, weight, normed, total, scales, M, N, eps,
    TYPE: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Total = x + residual, normed = its RMSNorm * weight: what comes after an all-reduce of the library's."""
    row = tl.program_id(0) * BLOCK_M
    own, scale = load_rows(residual, row, M, 0, N, BLOCK_M, BLOCK_N), load_rows(weight, 0, 1, 0, N, 1, BLOCK_N)
    acc = load_rows(x, row, M, 0, N, BLOCK_M, BLOCK_N).to(tl.float32)
    add_and_norm(acc, own, scale, Results(normed, total, scales), row, M, N, eps, TYPE, GROUP)
