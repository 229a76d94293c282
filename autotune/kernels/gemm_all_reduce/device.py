"""Device code of GEMM + all-reduce: one kernel, one launch; and the all-reduce alone, behind a GEMM of the library's.

A program computes a tile of this rank's part of C, or SPLITS programs do together; the last of them to finish sends it.
``one_shot``: to every rank, and each sums all parts. ``two_shot``: to the tile's owner, rank tile % WORLD, who sums and
sends the result to all. Our own part takes the same way as the others', so all ranks add the same numbers in the same
order.

Launch after launch. Inboxes and counters have two slots, used in turn, and no barrier is needed: a rank that sends for
launch e has finished e - 1, for which it needed something from every peer, sent in the peer's launch e - 1; so every
peer has finished e - 2, the last reader of the slot. In ``two_shot`` it needed results alone; their owners had needed
a part from every rank. A counter counts over all launches that used its slot: a fast peer may be one launch ahead, but
not two, so what it adds early counts in the other slot. The epoch (see ``wide_epoch``) is an int64, as it is halved;
counters, which may wrap around, are compared with what follows from the lower half of that.

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
from autotune.kernels.gemm_all_reduce.polled_tiles import ll_send_tile, ll_sum_tiles, sentinel_sum_tiles
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.counters import end_phase, finish_unordered, wait_for_all, wait_in_slot, wide_epoch
from autotune.kernels.primitives.exchange import inside_tile, read_tile, send_tile, sum_parts
from autotune.kernels.primitives.ll import ll_flag
from autotune.kernels.primitives.products import accumulate
from autotune.kernels.primitives.protocols import LL, SENTINEL, SIGNAL
from autotune.kernels.primitives.scales import quantised, scaled
from autotune.kernels.primitives.sentinel import sentinel_bits
from autotune.kernels.primitives.splits import join_splits, split_range
from autotune.kernels.primitives.tiles import add_bias, add_residual, store_tile, swizzle

ONE_SHOT = tl.constexpr(0)
TWO_SHOT = tl.constexpr(1)


@triton.jit
def deliver(
    part, inbox, index, counter, first, epoch, rank, heap_bases, rows, TYPE: tl.constexpr, PEERS: tl.constexpr,
    WORLD: tl.constexpr, PROTOCOL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, scales=None,
):  # fmt: skip
    """Send a tile, rounded to TYPE or as fp8 with ``scales``, as tile ``index`` of the inbox of PEERS ranks from
    ``first`` on: one, or all.
    """
    if PROTOCOL == LL:
        ll_send_tile(
            part.to(TYPE), ll_flag(epoch), inbox, index, first, rank, heap_bases, rows, PEERS, WORLD, BLOCK_M, BLOCK_N
        )  # fmt: skip
    else:
        of_rows = None
        if scales is not None:
            part, of_rows = quantised(part, inbox.dtype.element_ty, True)
        if PROTOCOL == SENTINEL:
            part = sentinel_bits(part.to(TYPE))
        for turn in tl.static_range(PEERS):
            peer = (first + turn) % WORLD
            send_tile(part, inbox, index, peer, rank, heap_bases, BLOCK_M, BLOCK_N, rows, scales, of_rows)
        if PROTOCOL == SIGNAL:
            if PEERS == 1:
                heap.signal(counter, first, rank, heap_bases)
            else:
                heap.signal_each(counter, rank, heap_bases, WORLD, 0)


@triton.jit
def collect(
    inbox, index, apart, counter, epoch, status, spin_limit, rows, TYPE: tl.constexpr, SOURCES: tl.constexpr,
    PROTOCOL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, scales=None,
):  # fmt: skip
    """Wait for what SOURCES ranks delivered of a tile and add it up: fp32 [BLOCK_M, BLOCK_N].

    What source number s sent is tile ``index`` + s * ``apart`` of our inbox.
    """
    if PROTOCOL == LL:
        acc = ll_sum_tiles(
            inbox, index, apart, ll_flag(epoch), status, spin_limit, rows, TYPE, SOURCES, BLOCK_M, BLOCK_N
        )  # fmt: skip
    elif PROTOCOL == SENTINEL:
        acc = sentinel_sum_tiles(inbox, index, apart, status, spin_limit, rows, TYPE, SOURCES, BLOCK_M, BLOCK_N)
    else:
        wait_in_slot(counter, epoch, SOURCES, status, spin_limit)
        acc = sum_parts(inbox, index, apart, SOURCES, BLOCK_M, BLOCK_N, rows, scales)
    return acc


@triton.jit
def share_part(
    acc, tile, tiles, rows, epoch, rank, inbox, inbox_scales, arrivals, heap_bases, TYPE: tl.constexpr,
    WORLD: tl.constexpr, MODE: tl.constexpr, PROTOCOL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Send our part of a tile, fp32 with ``rows`` rows that exist, to those who sum it."""
    slot = (epoch & 1).to(tl.int32)
    here = slot * tiles + tile
    counter = arrivals + here
    if MODE == ONE_SHOT:
        index = (slot * WORLD + rank) * tiles + tile
        deliver(
            acc, inbox, index, counter, rank, epoch, rank, heap_bases, rows, TYPE,
            WORLD, WORLD, PROTOCOL, BLOCK_M, BLOCK_N, inbox_scales,
        )  # fmt: skip
    else:
        index = (slot * WORLD + rank) * tl.cdiv(tiles, WORLD) + tile // WORLD
        deliver(
            acc, inbox, index, counter, tile % WORLD, epoch, rank, heap_bases, rows, TYPE,
            1, WORLD, PROTOCOL, BLOCK_M, BLOCK_N, inbox_scales,
        )  # fmt: skip


@triton.jit
def combine(
    c, bias, residual, m, n, M, N, tile, tiles, epoch, rank, inbox, inbox_scales, results, arrivals, returns,
    heap_bases, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr, PROTOCOL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Wait for the parts of tile (m, n), number ``tile``, and store their sum + bias + residual (None: without) into
    our C, rounded once more. Returns whether a wait has timed out, for ``seal_if``.

    C is stored through pointers even where operands come by TMA: the launch ends sooner after a small tile.
    """
    slot = (epoch & 1).to(tl.int32)
    rows = M - m * BLOCK_M
    here = slot * tiles + tile
    if MODE == ONE_SHOT:
        acc = collect(
            inbox, slot * WORLD * tiles + tile, tiles, arrivals + here, epoch, status, spin_limit, rows, TYPE,
            WORLD, PROTOCOL, BLOCK_M, BLOCK_N, inbox_scales,
        )  # fmt: skip
    else:
        if tile % WORLD == rank:
            owned = tl.cdiv(tiles, WORLD)
            total = collect(
                inbox, slot * WORLD * owned + tile // WORLD, owned, arrivals + here, epoch, status, spin_limit, rows,
                TYPE, WORLD, PROTOCOL, BLOCK_M, BLOCK_N, inbox_scales,
            )  # fmt: skip
            if BIAS:
                total = add_bias(total, bias, n * BLOCK_N, N, BLOCK_N)
            if residual is not None:
                total = add_residual(total, residual, m * BLOCK_M, n * BLOCK_N, M, N, BLOCK_M, BLOCK_N)
            deliver(
                total, results, here, returns + here, rank, epoch, rank, heap_bases, rows, TYPE,
                WORLD, WORLD, PROTOCOL, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        acc = collect(
            results, here, 0, returns + here, epoch, status, spin_limit, rows, TYPE, 1, PROTOCOL, BLOCK_M, BLOCK_N
        )  # fmt: skip
    in_vain = heap.timed_out(status)
    store_tile(
        acc, c, m * BLOCK_M, n * BLOCK_N, M, N, bias, BLOCK_M, BLOCK_N, False, BIAS and MODE != TWO_SHOT,
        residual=residual if MODE != TWO_SHOT else None,
    )  # fmt: skip
    return in_vain


@triton.jit
def keep_part(acc, parts, tile, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Our part of a tile, rounded to C's type, into ordinary memory until the next phase."""
    place = parts + tl.cast(tile, tl.int64) * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N)
    tl.store(place, acc.to(parts.dtype.element_ty))


@triton.jit
def exchange_part(
    c, bias, residual, parts, M, N, tile, group_m, epoch, rank, inbox, inbox_scales, results, arrivals, returns,
    heap_bases, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr, PROTOCOL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The all-reduce of a tile whose part ``keep_part`` has kept. Returns what ``combine`` does."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    m, n = swizzle(tile, tiles_m, tiles_n, group_m)
    acc = read_tile(parts, tile, BLOCK_M, BLOCK_N).to(tl.float32)
    share_part(
        acc, tile, tiles_m * tiles_n, M - m * BLOCK_M, epoch, rank, inbox, inbox_scales, arrivals, heap_bases, TYPE,
        WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    return combine(
        c, bias, residual, m, n, M, N, tile, tiles_m * tiles_n, epoch, rank, inbox, inbox_scales, results, arrivals,
        returns, heap_bases, status, spin_limit, TYPE, WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N, BIAS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M", "group_m", "finishing", "first", "rank", "spin_limit"])
def all_reduce_kernel(
    c, bias, residual, inbox, inbox_scales, results, parts, M, N, group_m, finishing, first, rank, heap_bases,
    epoch_counter, arrivals, returns, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr,
    PROTOCOL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The all-reduce behind a GEMM, a launch of its own; a tile a program.

    ``finishing`` programs end the epoch, among them ``first``, which is -1 where it is in the launch before.
    """
    in_vain = exchange_part(
        c, bias, residual, parts, M, N, tl.program_id(0), group_m, wide_epoch(epoch_counter), rank, inbox, inbox_scales,
        results, arrivals, returns, heap_bases, status, spin_limit, TYPE, WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N, BIAS,
    )  # fmt: skip
    finish_unordered(epoch_counter, finishing, tl.program_id(0) == first)
    heap.seal_if(in_vain, c, tl.cast(M, tl.int64) * N)


@triton.jit(do_not_specialize=["M", "group_m", "gemm_programs", "finishing", "rank", "spin_limit"])
def gemm_all_reduce_kernel(
    a, b, c, bias, residual, scale_a, scale_b, inbox, inbox_scales, results, parts, partials, tickets,
    M, N, K, stride_bk, stride_bn, group_m, gemm_programs, finishing, rank,
    heap_bases, epoch_counter, arrivals, returns, ready, phase, trace, status, spin_limit, TYPE: tl.constexpr,
    WORLD: tl.constexpr, MODE: tl.constexpr, PROTOCOL: tl.constexpr, SEPARATE: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, EVEN_K: tl.constexpr, BIAS: tl.constexpr,
    SCALES: tl.constexpr, PROMOTE: tl.constexpr, PHASED: tl.constexpr,
):  # fmt: skip
    """C [M, N] = sum over ranks of A [M, K] @ B [K, N], + bias + residual (None: without); C's type is TYPE.

    The first ``gemm_programs`` programs compute and send; with SEPARATE the others combine, else each what it sent.
    PHASED, with SEPARATE, for ``tune taxes`` alone: they compute and keep, and the others, if there are any, send and
    combine once all ranks have ended their GEMM.
    """
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
        first_k, end_k = split_range(item % SPLITS, K, SPLITS, BLOCK_K)
        traces.begin(trace, traces.TILE, item // gemm_programs, item)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        acc = accumulate(
            acc, a, m * BLOCK_M, M, K, b, N, n * BLOCK_N, stride_bk, stride_bn, first_k, end_k,
            BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, scale_a, scale_b, SCALES, PROMOTE,
        )  # fmt: skip
        acc = scaled(acc, scale_a, m * BLOCK_M, M, scale_b, n * BLOCK_N, N, BLOCK_M, BLOCK_N, SCALES)
        whole = True
        if SPLITS > 1:
            acc, whole = join_splits(acc, partials, tickets, tile, item % SPLITS, SPLITS, BLOCK_M, BLOCK_N)
        if whole:
            if PHASED:
                keep_part(acc, parts, tile, BLOCK_M, BLOCK_N)
            else:
                epoch = wide_epoch(epoch_counter)
                traces.begin(trace, traces.SENT, item // gemm_programs, tile)
                share_part(
                    acc, tile, tiles, M - m * BLOCK_M, epoch, rank, inbox, inbox_scales, arrivals, heap_bases, TYPE,
                    WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N,
                )  # fmt: skip
                traces.end(trace, traces.SENT, item // gemm_programs)
            if not SEPARATE:
                traces.begin(trace, traces.WAIT, item // gemm_programs, tile)
                in_vain |= combine(
                    c, bias, residual, m, n, M, N, tile, tiles, epoch, rank, inbox, inbox_scales, results, arrivals,
                    returns, heap_bases, status, spin_limit, TYPE, WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N, BIAS,
                )  # fmt: skip
                traces.end(trace, traces.WAIT, item // gemm_programs)
        traces.end(trace, traces.TILE, item // gemm_programs)
    if PHASED:
        if ready is not None:
            if pid < gemm_programs:
                traces.begin(trace, traces.ENDED, 0, 0)
                end_phase(phase, gemm_programs, ready, rank, heap_bases, WORLD)
            else:
                epoch = wide_epoch(epoch_counter)
                traces.begin(trace, traces.PASSED, 0, 0)
                wait_for_all(ready, (epoch + 1).to(tl.int32), status, spin_limit, WORLD)
                traces.end(trace, traces.PASSED, 0)
                traces.begin(trace, traces.SENT, 0, pid - gemm_programs)
                in_vain |= exchange_part(
                    c, bias, residual, parts, M, N, pid - gemm_programs, group_m, epoch, rank, inbox, inbox_scales,
                    results, arrivals, returns, heap_bases, status, spin_limit, TYPE, WORLD, MODE, PROTOCOL, BLOCK_M,
                    BLOCK_N, BIAS,
                )  # fmt: skip
                traces.end(trace, traces.SENT, 0)
        finish_unordered(epoch_counter, finishing, pid == 0)
    elif SEPARATE:
        if pid >= gemm_programs:
            tile = pid - gemm_programs
            epoch = wide_epoch(epoch_counter)
            m, n = swizzle(tile, tiles_m, tiles_n, group_m)
            traces.begin(trace, traces.WAIT, 0, tile)
            in_vain |= combine(
                c, bias, residual, m, n, M, N, tile, tiles, epoch, rank, inbox, inbox_scales, results, arrivals,
                returns, heap_bases, status, spin_limit, TYPE, WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N, BIAS,
            )  # fmt: skip
            traces.end(trace, traces.WAIT, 0)
    if not PHASED:
        finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
    heap.seal_if(in_vain, c, tl.cast(M, tl.int64) * N)
