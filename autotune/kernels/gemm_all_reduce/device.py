"""Device code of GEMM + all-reduce: one kernel, one launch, whatever the mode.

A program computes a tile of this rank's part of C, or SPLITS programs do together; the last of them to finish sends it.
``one_shot``: to every rank, and each sums all parts. ``two_shot``: to the tile's owner, rank tile % WORLD, who sums and
sends the result to all. ``atomic``: added to an fp32 accumulator in every rank. Our own part takes the same way as the
others', so all ranks add the same numbers in the same order (but for ``atomic``).

Launch after launch. Inboxes, accumulators and counters have two slots, used in turn, and no barrier is needed: a rank
that sends for launch e has finished e - 1, for which it needed something from every peer, sent in the peer's launch
e - 1; so every peer has finished e - 2, the last reader of the slot. In ``two_shot`` it needed results alone; their
owners had needed a part from every rank. An accumulator is set back to zero by its reader, hence before anyone adds to
it again. A counter counts over all launches that used its slot: a fast peer may be one launch ahead, but not two, so
what it adds early counts in the other slot. The launch's number is in ``entries`` (see ``enter``), an int64: it does
not wrap around, and counters, which may, are compared with its lower half.

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
from autotune.kernels.gemm_all_reduce.packed import mark_of, send_words, sum_words
from autotune.kernels.primitives.counters import enter
from autotune.kernels.primitives.exchange import inside_tile, read_tile, send_tile, sum_parts
from autotune.kernels.primitives.splits import join_splits, split_range
from autotune.kernels.primitives.tiles import accumulate, add_bias, grouped, store_tile

ONE_SHOT = tl.constexpr(0)
TWO_SHOT = tl.constexpr(1)
ATOMIC = tl.constexpr(2)


@triton.jit
def share_part(
    acc, tile, tiles, rows, epoch, rank, inbox, arrivals, heap_bases, TYPE: tl.constexpr,
    WORLD: tl.constexpr, MODE: tl.constexpr, PACKED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Send our part of a tile, fp32 with ``rows`` rows that exist, to those who sum it."""
    slot = (epoch & 1).to(tl.int32)
    counter = arrivals + slot * tiles + tile
    if PACKED:
        index = (slot * WORLD + rank) * tiles + tile
        send_words(acc.to(TYPE), mark_of(epoch), inbox, index, rank, heap_bases, rows, WORLD, BLOCK_M, BLOCK_N)
    elif MODE == ONE_SHOT:
        index = (slot * WORLD + rank) * tiles + tile
        for turn in tl.static_range(WORLD):
            send_tile(acc, inbox, index, (rank + turn) % WORLD, rank, heap_bases, BLOCK_M, BLOCK_N, rows)
        heap.signal_all(counter, rank, heap_bases, WORLD)
    elif MODE == TWO_SHOT:
        index = (slot * WORLD + rank) * tl.cdiv(tiles, WORLD) + tile // WORLD
        send_tile(acc, inbox, index, tile % WORLD, rank, heap_bases, BLOCK_M, BLOCK_N, rows)
        heap.signal(counter, tile % WORLD, rank, heap_bases)
    else:
        place = tl.cast(slot * tiles + tile, tl.int64) * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N)
        exists = (tl.arange(0, BLOCK_M) < rows)[:, None]
        for turn in tl.static_range(WORLD):
            heap.atomic_add(
                inbox + place, acc, rank, (rank + turn) % WORLD, heap_bases, mask=exists, sem="relaxed", scope="sys",
                hint=(1, 16),
            )  # fmt: skip
        heap.signal_all(counter, rank, heap_bases, WORLD)


@triton.jit
def combine(
    c, bias, m, n, M, N, tile, tiles, epoch, rank, inbox, results, arrivals, returns, heap_bases, status, spin_limit,
    TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Wait for the parts of tile (m, n), number ``tile``, and store their sum + bias into our C, rounded once more.

    C is stored through pointers even where operands come by TMA: the launch ends sooner after a small tile.
    """
    slot = (epoch & 1).to(tl.int32)
    uses = (epoch >> 1) + 1  # launches that have used the slot, this one included
    rows = M - m * BLOCK_M
    here = slot * tiles + tile
    if PACKED:
        index = slot * WORLD * tiles + tile
        acc = sum_words(
            inbox, index, tiles, mark_of(epoch), status, spin_limit, rows, TYPE, WORLD, BLOCK_M, BLOCK_N
        )  # fmt: skip
    elif MODE == ONE_SHOT:
        heap.wait(arrivals + here, (uses * WORLD).to(tl.int32), status, spin_limit)
        acc = sum_parts(inbox, slot * WORLD * tiles + tile, tiles, WORLD, BLOCK_M, BLOCK_N, rows)
    elif MODE == TWO_SHOT:
        if tile % WORLD == rank:
            heap.wait(arrivals + here, (uses * WORLD).to(tl.int32), status, spin_limit)
            owned = tl.cdiv(tiles, WORLD)
            total = sum_parts(inbox, slot * WORLD * owned + tile // WORLD, owned, WORLD, BLOCK_M, BLOCK_N, rows)
            if BIAS:
                total = add_bias(total, bias, n * BLOCK_N, N, BLOCK_N)
            for turn in tl.static_range(WORLD):
                send_tile(total, results, here, (rank + turn) % WORLD, rank, heap_bases, BLOCK_M, BLOCK_N, rows)
            heap.signal_all(returns + here, rank, heap_bases, WORLD)
        heap.wait(returns + here, uses.to(tl.int32), status, spin_limit)
        acc = read_tile(results, here, BLOCK_M, BLOCK_N, rows).to(tl.float32)
    else:
        heap.wait(arrivals + here, (uses * WORLD).to(tl.int32), status, spin_limit)
        acc = read_tile(inbox, here, BLOCK_M, BLOCK_N, rows)
        place = tl.cast(here, tl.int64) * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N)
        tl.store(inbox + place, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))
    store_tile(acc, c, m * BLOCK_M, n * BLOCK_N, M, N, bias, BLOCK_M, BLOCK_N, False, BIAS and MODE != TWO_SHOT)


@triton.jit(do_not_specialize=["M", "group_m", "gemm_programs", "rank", "spin_limit"])
def gemm_all_reduce_kernel(
    a, b, c, bias, inbox, results, partials, tickets,
    M, N, K, stride_bk, stride_bn, group_m, gemm_programs, rank,
    heap_bases, entries, arrivals, returns, status, spin_limit, TYPE: tl.constexpr,
    WORLD: tl.constexpr, MODE: tl.constexpr, PACKED: tl.constexpr, SEPARATE: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, EVEN_K: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """C [M, N] = sum over ranks of A [M, K] @ B [K, N], + bias; C's type is TYPE.

    The first ``gemm_programs`` programs compute and send; with SEPARATE the others combine, else each what it sent.
    """
    pid = tl.program_id(0)
    epoch = enter(entries, tl.num_programs(0))
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    items = tiles * SPLITS
    if SEPARATE:
        items = tl.where(pid < gemm_programs, items, 0)
    for item in range(pid, items, gemm_programs):
        tile = item // SPLITS
        m, n = grouped(tile, tiles_m, tiles_n, group_m)
        first_k, end_k = split_range(item % SPLITS, K, SPLITS, BLOCK_K)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        acc = accumulate(
            acc, a, m * BLOCK_M, M, K, b, N, n * BLOCK_N, stride_bk, stride_bn, first_k, end_k,
            BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K,
        )  # fmt: skip
        whole = True
        if SPLITS > 1:
            acc, whole = join_splits(acc, partials, tickets, tile, item % SPLITS, SPLITS, BLOCK_M, BLOCK_N)
        if whole:
            share_part(
                acc, tile, tiles, M - m * BLOCK_M, epoch, rank, inbox, arrivals, heap_bases, TYPE,
                WORLD, MODE, PACKED, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            if not SEPARATE:
                combine(
                    c, bias, m, n, M, N, tile, tiles, epoch, rank, inbox, results, arrivals, returns, heap_bases,
                    status, spin_limit, TYPE, WORLD, MODE, PACKED, BLOCK_M, BLOCK_N, BIAS,
                )  # fmt: skip
    if SEPARATE:
        if pid >= gemm_programs:
            tile = pid - gemm_programs
            m, n = grouped(tile, tiles_m, tiles_n, group_m)
            combine(
                c, bias, m, n, M, N, tile, tiles, epoch, rank, inbox, results, arrivals, returns, heap_bases,
                status, spin_limit, TYPE, WORLD, MODE, PACKED, BLOCK_M, BLOCK_N, BIAS,
            )  # fmt: skip
