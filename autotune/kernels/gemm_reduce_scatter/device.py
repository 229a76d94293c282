"""Device code of GEMM + reduce-scatter: the fused kernel, the sum behind the copy engines, the sum that pulls.

Rank r owns ``rows`` rows of C, from r * rows of A on. Tiles are cut owner by owner (the last row of an owner's tiles
ends with its rows, or hangs over into the next owner's; what hangs over is not stored), so that each has one owner. A
launch computes the peers' tiles first and its own last: peers' parts travel while it computes, and its own part of a
tile is added to theirs from registers. Tiles of an owner are numbered down the columns, and one signal covers
TRANSFER_TILES of them.

Launch after launch. The tiles under way lie in two slots, used in turn. Pushing: a rank that stores into a slot for
epoch e has finished epoch e - 1, hence waited for every peer's parts of e - 1, hence every peer has begun e - 1, hence
finished e - 2, the last launch to read that slot of its inbox. Pulling: the slot is our own and its last readers are
the peers in their e - 2, which they have finished for the same reason. Every rank owns a row at least, so every rank
does wait for every peer. Behind the copy engines there is one inbox: ``ready`` counters say that it may be written to.
The library's product that peers pull from is one, too: a launch ends when they have.

No wait can starve its producer. Only own tiles wait, and for nothing but peers' tiles; in each program, and in the
order of program ids, those come before it, the last late signal included. So with one program a tile the hardware has
dispatched them before, and persistent programs are no more than the compute units, all resident. (The interpreter runs
programs one after another: there a persistent launch is one program.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.counters import arrive, finish, finish_unordered, last_of, read_epoch, wait_for_all
from autotune.kernels.primitives.exchange import add_tiles, read_tile, send_tile
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import Operands, split_product
from autotune.kernels.primitives.tiles import Output, row_of, store_tile, swizzle


@triton.jit
def announce(index, tiles, sent, arrivals, owner, peers, TRANSFER_TILES: tl.constexpr):
    """Signal the owner that our part of its tile ``index`` is there, once that is so of the whole unit."""
    units = tl.cdiv(tiles, TRANSFER_TILES)
    unit = index // TRANSFER_TILES
    counter = arrivals + peers.rank * units + unit
    if TRANSFER_TILES == 1:
        heap.signal(counter, owner, peers)
    else:
        in_unit = tl.minimum(tiles - unit * TRANSFER_TILES, TRANSFER_TILES)
        heap.signal(counter, owner, peers, last_of(sent + owner * units + unit, in_unit))


@triton.jit
def row_of_owner(m, out, BLOCK_M: tl.constexpr):
    """The first row of a tile among its owner's. With a residual, in whose place C may be stored, no row is in two."""
    return m * BLOCK_M if out.residual is not None else row_of(m, out.rows, BLOCK_M)


@triton.jit(do_not_specialize=["M", "rows", "group_m", "rank", "spin_limit"])
def gemm_scatter_kernel(
    a, b, c, result, bias, residual, scale_a, scale_b, inbox, inbox_scales, partials, tickets, sent,
    M, N, K, rows, stride_bk, stride_bn, group_m, rank,
    heap_bases, epoch_counter, arrivals, trace, status, spin_limit,
    WORLD: tl.constexpr, PULL: tl.constexpr, ROTATE: tl.constexpr, TRANSFER_TILES: tl.constexpr,
    NEXT_TURN: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, EVEN_K: tl.constexpr, BIAS: tl.constexpr, FLATTEN: tl.constexpr,
    SCALES: tl.constexpr, PROMOTE: tl.constexpr, MEMORY: tl.constexpr, BY_RANK: tl.constexpr,
):  # fmt: skip
    """C [rows, N] = the sum over ranks of our rows of A [M, K] @ B [K, N], + bias [N] + residual [rows, N] or None.

    ``inbox_scales``: see ``exchange``; None unless parts travel in fp8.

    PULL: parts stay where they were made, and the owner loads them. ROTATE: peers' tiles are computed one peer after
    the other, rank + 1 first, so that no two ranks send to one peer at a time; otherwise the peers' rows of tiles take
    turns. SPLITS programs share a tile's depth, and the last of them sends it, or collects it. NEXT_TURN: a program
    signals a tile in its next turn: a signal waits until what was stored has arrived, and by then it has.

    MEMORY: our own part of our own tile takes the way through memory, too; for ``tune taxes``, and with BY_RANK, where
    parts are summed in the order of ranks: a row's sum does not depend on who owns the row.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    operands = Operands(a, M, K, b, N, stride_bk, stride_bn, scale_a, scale_b)
    out = Output(c, rows, N, bias if BIAS else None, residual)
    FORM: tl.constexpr = known(Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, SCALES, PROMOTE)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    slot = (epoch & 1).to(tl.int32)  # not %: the epoch wraps around and is then negative
    others: tl.constexpr = WORLD - 1 + (WORLD == 1)
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    remote = (WORLD - 1) * tiles * SPLITS

    # What a late signal is about; at first a tile of ours, whose counters nobody looks at.
    stored_owner = rank
    stored_index = 0
    for item in tl.range(pid, remote, programs, flatten=FLATTEN):
        m, n = swizzle(item // SPLITS, others * tiles_m, tiles_n, group_m)
        if ROTATE:
            ahead = 1 + m // tiles_m
            m = m % tiles_m
        else:
            ahead = 1 + m % others
            m = m // others
        owner = (rank + ahead) % WORLD
        index = n * tiles_m + m
        traces.begin(trace, traces.TILE, item // programs, item)
        row, number = owner * rows + row_of_owner(m, out, BLOCK_M), owner * tiles + index
        acc, whole = split_product(
            operands, row, n * BLOCK_N, partials, tickets, number, item % SPLITS, SPLITS, FORM
        )  # fmt: skip
        if whole:
            if NEXT_TURN:
                announce(stored_index, tiles, sent, arrivals, stored_owner, peers, TRANSFER_TILES)
            place = (slot * WORLD + (owner if PULL else rank)) * tiles + index
            traces.begin(trace, traces.SENT, item // programs, item)
            send_tile(acc, inbox, inbox_scales, place, rank if PULL else owner, peers)
            if NEXT_TURN:
                stored_owner = owner
                stored_index = index
            else:
                announce(index, tiles, sent, arrivals, owner, peers, TRANSFER_TILES)
            traces.end(trace, traces.SENT, item // programs)
        traces.end(trace, traces.TILE, item // programs)
    if NEXT_TURN:
        announce(stored_index, tiles, sent, arrivals, stored_owner, peers, TRANSFER_TILES)

    first_own = pid + tl.cdiv(tl.maximum(remote - pid, 0), programs) * programs
    for item in tl.range(first_own, WORLD * tiles * SPLITS, programs, flatten=FLATTEN):
        m, n = swizzle((item - remote) // SPLITS, tiles_m, tiles_n, group_m)
        index = n * tiles_m + m
        traces.begin(trace, traces.TILE, item // programs, item)
        row, number = rank * rows + row_of_owner(m, out, BLOCK_M), rank * tiles + index
        acc, whole = split_product(
            operands, row, n * BLOCK_N, partials, tickets, number, item % SPLITS, SPLITS, FORM
        )  # fmt: skip
        if whole:
            own = (slot * WORLD + rank) * tiles + index
            if MEMORY:
                send_tile(acc, inbox, inbox_scales, own, rank, peers)
                tl.debug_barrier()
                if not BY_RANK:
                    acc = read_tile(inbox, inbox_scales, own, BLOCK_M, BLOCK_N)
            traces.begin(trace, traces.WAIT, item // programs, item)
            units = tl.cdiv(tiles, TRANSFER_TILES)
            acc = add_tiles(
                acc, inbox, inbox_scales, own if PULL else slot * WORLD * tiles + index, tiles,
                arrivals + index // TRANSFER_TILES, units, epoch + 1, peers, WORLD, PULL,
                BY_RANK,
            )  # fmt: skip
            traces.end(trace, traces.WAIT, item // programs)
            store_tile(acc, out, row_of_owner(m, out, BLOCK_M), n * BLOCK_N, FORM)
        traces.end(trace, traces.TILE, item // programs)

    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    finish_unordered(epoch_counter, programs, pid == 0)
    heap.seal_if(in_vain, result, tl.cast(rows, tl.int64) * N)


@triton.jit
def store_sum(acc, c, bias, residual, place, inside, N):
    """C = acc + bias + residual at ``place``, elements of a matrix N wide."""
    if bias is not None:
        acc += tl.load(bias + place % N, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        acc += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(c + place, acc.to(c.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rank", "spin_limit"])
def sum_kernel(
    own, inbox, c, bias, residual, elements, N, rank, heap_bases, epoch_counter, done, status, spin_limit,
    WORLD: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """C [elements / N, N] = own + the peers' parts in ``inbox`` [WORLD, elements] + bias + residual; BLOCK elements a
    program.

    Tells the peers that our copies to them have been made, which is so when this launch begins, and waits until theirs
    have. The order of the sum is that of ``add_tiles``.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid = tl.program_id(0)
    epoch = read_epoch(epoch_counter)
    if pid == 0:
        arrive(done, peers, WORLD)
    place = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    acc = tl.load(own + place, mask=inside, other=0.0).to(tl.float32)
    wait_for_all(done, epoch + 1, peers, WORLD)
    for back in tl.static_range(1, WORLD):
        source = (rank + WORLD - back) % WORLD
        part = tl.load(inbox + tl.cast(source, tl.int64) * elements + place, mask=inside, other=0.0)
        acc += part.to(tl.float32)
    in_vain = heap.timed_out(status)
    store_sum(acc, c, bias if BIAS else None, residual, place, inside, N)
    finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
    heap.seal_if(in_vain, c, elements)


@triton.jit(do_not_specialize=["rank", "spin_limit"])
def pull_sum_kernel(
    product, c, bias, residual, elements, N, rank, heap_bases, epoch_counter, ready, done, status, spin_limit,
    WORLD: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """C [elements / N, N] = our rows of every rank's ``product`` [WORLD, elements], + bias + residual; BLOCK elements a
    program.

    Tells the peers that our product is whole, which is so when this launch begins, and waits until theirs are. The last
    program to have loaded tells them so and waits until they have: after the launch the product may be overwritten. The
    order of the sum is that of ``add_tiles``.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    if pid == 0:
        arrive(ready, peers, WORLD)
    place = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    ours = product + tl.cast(rank, tl.int64) * elements + place
    acc = tl.load(ours, mask=inside, other=0.0).to(tl.float32)
    wait_for_all(ready, epoch + 1, peers, WORLD)
    for back in tl.static_range(1, WORLD):
        source = (rank + WORLD - back) % WORLD
        acc += heap.load(ours, rank, source, heap_bases, mask=inside, other=0.0, hint=HINT).to(tl.float32)
    in_vain = heap.timed_out(status)
    store_sum(acc, c, bias if BIAS else None, residual, place, inside, N)
    if finish(epoch_counter, programs):
        arrive(done, peers, WORLD)
        wait_for_all(done, epoch + 1, peers, WORLD)
    heap.seal_if(in_vain, c, elements)
