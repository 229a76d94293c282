"""Device code of GEMM + all-reduce: one kernel, one launch; and the all-reduce alone, behind a GEMM of the library's.
The same kernel is GEMM + reduce-scatter's one shot.

A program computes a tile of this rank's part of C, or SPLITS programs do together; the last of them to finish sends it.
How parts are sent and summed: ``primitives/all_reduce.py``.

Launch after launch. Inboxes and counters have two slots, used in turn, and no barrier is needed: a rank that sends for
launch e has finished e - 1, for which it needed something from every peer, sent in the peer's launch e - 1; so every
peer has finished e - 2, the last reader of the slot. In ``two_shot`` it needed results alone; their owners had needed
a part from every rank. As reduce-scatter it needed its rows of every part, and every rank owns a row at least. A
counter counts over all launches that used its slot: a fast peer may be one launch ahead, but not two, so what it adds
early counts in the other slot. The epoch (see ``read_epoch``) is an int64, as it is halved; counters, which may wrap
around, are compared with what follows from the lower half of that.

No wait starves its producer. Programs are dispatched in the order of their ids, and tiles are in that order too, the
same on all ranks. Suppose some programs wait for ever, and t is the first tile that some rank has not sent: all waits
for earlier tiles end, so the programs before t's finish, t's get their turn, and they wait for nothing before they
send. Programs of their own that combine (SEPARATE) come after all others, which then never wait. A persistent program
whose tiles are split and which combines itself could wait for a tile while it blocks the place of a program that the
tile needs: the space allows that combination only where all programs are resident.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.all_reduce import ONE_SHOT, Block, Boxes, Exchange, share_part, summed
from autotune.kernels.primitives.counters import finish_unordered, read_epoch
from autotune.kernels.primitives.exchange import read_tile
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import Operands, split_product
from autotune.kernels.primitives.tiles import Output, finished, put_tile, row_of, swizzle


@triton.jit
def combine(out, m, n, row, block, epoch, boxes, peers, FORM: tl.constexpr):
    """Wait for the parts of tile (m, n), which begins at ``row``, and store their sum + bias + residual into our C,
    rounded once more. Returns whether a wait has timed out, for ``seal_if``.

    C is stored through pointers even where operands come by TMA: the launch ends sooner after a small tile.
    """
    column = n * FORM.BLOCK_N
    acc = summed(out, row, column, block, epoch, boxes, peers, FORM)
    in_vain = heap.timed_out(peers.status)
    first = m * FORM.BLOCK_M
    if block.owned is not None:
        row -= peers.rank * block.owned
        first = tl.maximum(first - peers.rank * block.owned, 0)
    if FORM.MODE == ONE_SHOT:
        acc = finished(acc, out, row, column, first=first)
    put_tile(acc, out.c, row, column, out.rows, out.columns, first)
    return in_vain


@triton.jit(do_not_specialize=["M", "group_m", "rank", "spin_limit"])
def all_reduce_kernel(
    c, bias, residual, inbox, inbox_scales, results, parts, M, N, group_m, rank, heap_bases,
    epoch_counter, arrivals, returns, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr,
    PROTOCOL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The all-reduce of the ``parts`` that a GEMM has left in memory, a launch of its own; a tile a program."""
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    boxes = Boxes(inbox, results, arrivals, returns, inbox_scales)
    out = Output(c, M, N, bias if BIAS else None, residual)
    EXCHANGE: tl.constexpr = known(Exchange, TYPE, WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N)
    tile = tl.program_id(0)
    epoch = read_epoch(epoch_counter)
    tiles_m = tl.cdiv(M, BLOCK_M)
    m, n = swizzle(tile, tiles_m, tl.cdiv(N, BLOCK_N), group_m)
    row = row_of(m, M, BLOCK_M)
    block = Block(tile, tl.num_programs(0), M - row, BLOCK_N, None, m * BLOCK_M - row)
    acc = read_tile(parts, None, tile, BLOCK_M, BLOCK_N)
    share_part(acc, block, epoch, boxes, peers, EXCHANGE)
    in_vain = combine(out, m, n, row, block, epoch, boxes, peers, EXCHANGE)
    finish_unordered(epoch_counter, tl.num_programs(0), tile == 0)
    heap.seal_if(in_vain, c, tl.cast(M, tl.int64) * N)


@triton.jit(do_not_specialize=["M", "group_m", "gemm_programs", "owned", "rank", "spin_limit"])
def gemm_all_reduce_kernel(
    a, b, c, bias, residual, scale_a, scale_b, inbox, inbox_scales, results, partials, tickets,
    M, N, K, stride_bk, stride_bn, group_m, gemm_programs, owned, rank,
    heap_bases, epoch_counter, arrivals, returns, trace, status, spin_limit, TYPE: tl.constexpr,
    WORLD: tl.constexpr, MODE: tl.constexpr, PROTOCOL: tl.constexpr, SEPARATE: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, EVEN_K: tl.constexpr, BIAS: tl.constexpr,
    SCALES: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """C [M, N] = sum over ranks of A [M, K] @ B [K, N], + bias + residual (None: without); C's type is TYPE.

    The first ``gemm_programs`` programs compute and send; with SEPARATE the others combine, else each what it sent.

    With ``owned`` (else None), as reduce-scatter: each rank gets so many rows alone, those from rank * ``owned`` on,
    and has a C and a residual [owned, N] of them.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    boxes = Boxes(inbox, results, arrivals, returns, inbox_scales)
    operands = Operands(a, M, K, b, N, stride_bk, stride_bn, scale_a, scale_b)
    rows = M if owned is None else owned
    out = Output(c, rows, N, bias if BIAS else None, residual)
    GEMM: tl.constexpr = known(Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, SCALES, PROMOTE)
    EXCHANGE: tl.constexpr = known(Exchange, TYPE, WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N)
    pid = tl.program_id(0)
    # Fetched into the L2 now, for nobody waits for it: after the GEMM both would have to come from memory.
    tl.load(epoch_counter, volatile=True)
    tl.load(heap_bases, volatile=True)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    items = tiles * SPLITS
    if SEPARATE:
        items = tl.where(pid < gemm_programs, items, 0)
    in_vain = pid < 0
    for item in range(pid, items, gemm_programs):
        tile = item // SPLITS
        m, n = swizzle(tile, tiles_m, tiles_n, group_m)
        traces.begin(trace, traces.TILE, item // gemm_programs, item)
        row = row_of(m, M, BLOCK_M)
        acc, whole = split_product(
            operands, row, n * BLOCK_N, partials, tickets, tile, item % SPLITS, SPLITS, GEMM
        )  # fmt: skip
        if whole:
            block = Block(tile, tiles, M - row, BLOCK_N, None, m * BLOCK_M - row, row, owned)
            epoch = read_epoch(epoch_counter)
            traces.begin(trace, traces.SENT, item // gemm_programs, tile)
            share_part(acc, block, epoch, boxes, peers, EXCHANGE)
            traces.end(trace, traces.SENT, item // gemm_programs)
            if not SEPARATE:
                traces.begin(trace, traces.WAIT, item // gemm_programs, tile)
                in_vain |= combine(out, m, n, row, block, epoch, boxes, peers, EXCHANGE)
                traces.end(trace, traces.WAIT, item // gemm_programs)
        traces.end(trace, traces.TILE, item // gemm_programs)
    if SEPARATE:
        if pid >= gemm_programs:
            tile = pid - gemm_programs
            epoch = read_epoch(epoch_counter)
            m, n = swizzle(tile, tiles_m, tiles_n, group_m)
            row = row_of(m, M, BLOCK_M)
            traces.begin(trace, traces.WAIT, 0, tile)
            block = Block(tile, tiles, M - row, BLOCK_N, None, m * BLOCK_M - row, row, owned)
            in_vain |= combine(out, m, n, row, block, epoch, boxes, peers, EXCHANGE)
            traces.end(trace, traces.WAIT, 0)
    finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
    heap.seal_if(in_vain, c, tl.cast(rows, tl.int64) * N)
