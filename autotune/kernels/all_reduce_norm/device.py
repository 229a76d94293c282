"""Device code of all-reduce + residual + RMSNorm: one kernel, one launch, whatever the mode.

A block is BLOCK_M whole rows. A program sends this rank's part of a block, or SENDERS programs do, a range of columns
each. ``one_shot``: to every rank, and each sums all parts. ``two_shot``: to the block's owner, rank block % WORLD, who
sums and sends the sum to all. Then every rank adds the residual and norms for itself, as it needs all rows. Our own
part takes the same way as the others', so all ranks add the same numbers in the same order, and get the same bits.

Launch after launch, and no wait starves its producer: as in GEMM + all-reduce (``gemm_all_reduce/device.py``), with
blocks in the place of tiles. Programs that only send wait for nothing and come before all others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import finish_unordered, wait_in_slot, wide_epoch
from autotune.kernels.primitives.ll import ll_data, ll_flag, ll_sum, ll_wait, ll_words
from autotune.kernels.primitives.protocols import LL, SENTINEL, SIGNAL
from autotune.kernels.primitives.sentinel import sentinel_bits, sentinel_take

ONE_SHOT = tl.constexpr(0)
TWO_SHOT = tl.constexpr(1)


@triton.jit
def load_rows(x, row, M, column, N, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """Rows from ``row`` and columns from ``column`` on of x [M, N], zero beyond its edge: [BLOCK_M, WIDTH]."""
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, WIDTH)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    return tl.load(x + rows.to(tl.int64)[:, None] * N + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(value, out, row, M, N, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """Whole rows from ``row`` on, rounded to the type of out [M, N]."""
    rows, columns = row + tl.arange(0, BLOCK_M), tl.arange(0, WIDTH)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    place = out + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(place, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_and_norm(
    acc, residual, weight, normed, total, row, M, N, eps, TYPE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store acc + residual (acc fp32 [BLOCK_M, BLOCK_N], zero from column N on), and its RMSNorm."""
    acc = (acc + residual.to(tl.float32)).to(TYPE).to(tl.float32)
    store_rows(acc, total, row, M, N, BLOCK_M, BLOCK_N)
    scale = 1.0 / tl.sqrt(tl.sum(acc * acc, axis=1) / N + eps)
    store_rows(acc * scale[:, None] * weight.to(tl.float32), normed, row, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def deliver(
    part, inbox, index, counter, first, column, row, M, N, epoch, rank, heap_bases, TYPE: tl.constexpr,
    PEERS: tl.constexpr, WORLD: tl.constexpr, PROTOCOL: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Send WIDTH columns of a block, rounded to TYPE, into block ``index`` of the inbox of PEERS ranks from ``first``
    on: one, or all.
    """
    value = part.to(TYPE)
    PER_WORD: tl.constexpr = 32 // TYPE.primitive_bitwidth if PROTOCOL == LL else 1
    if PROTOCOL == LL:
        value = ll_words(ll_data(value, BLOCK_M, WIDTH), ll_flag(epoch))
    elif PROTOCOL == SENTINEL:
        value = sentinel_bits(value)
    rows, columns = tl.arange(0, BLOCK_M), column // PER_WORD + tl.arange(0, WIDTH // PER_WORD)
    inside = (row + rows < M)[:, None] & (columns < N // PER_WORD)[None, :]
    place = inbox + (tl.cast(index, tl.int64) * BLOCK_M + rows)[:, None] * (N // PER_WORD) + columns[None, :]
    for turn in tl.static_range(PEERS):
        heap.store(place, value, rank, (first + turn) % WORLD, heap_bases, mask=inside, hint=(1, 16))
    if PROTOCOL == SIGNAL:
        if PEERS == 1:
            heap.signal(counter, first, rank, heap_bases)
        else:
            heap.signal_each(counter, rank, heap_bases, WORLD, 0)


@triton.jit
def collect(
    inbox, index, apart, counter, row, M, N, epoch, status, spin_limit, TYPE: tl.constexpr, SOURCES: tl.constexpr,
    SIGNALS: tl.constexpr, PROTOCOL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Wait for what SOURCES ranks delivered of a block, with SIGNALS signals, and add it up: fp32 [BLOCK_M, BLOCK_N].

    What source number s sent is block ``index`` + s * ``apart`` of our inbox.
    """
    rows = tl.arange(0, BLOCK_M)
    if PROTOCOL != SIGNAL:
        PER_WORD: tl.constexpr = 32 // TYPE.primitive_bitwidth if PROTOCOL == LL else 1
        sources = tl.arange(0, triton.next_power_of_2(SOURCES))
        columns = tl.arange(0, BLOCK_N // PER_WORD)
        blocks = (index + sources * apart).to(tl.int64)
        place = (blocks[:, None, None] * BLOCK_M + rows[None, :, None]) * (N // PER_WORD) + columns[None, None, :]
        exists = (sources < SOURCES)[:, None, None] & (row + rows < M)[None, :, None]
        exists = exists & (columns < N // PER_WORD)[None, None, :]
        if PROTOCOL == LL:
            words = ll_wait(inbox + place, ll_flag(epoch), exists, status, spin_limit)
            acc = ll_sum(words, TYPE, BLOCK_M, BLOCK_N)
        else:
            data = sentinel_take(inbox + place, exists, status, spin_limit)
            acc = tl.sum(data.to(TYPE, bitcast=True).to(tl.float32), axis=0)
    else:
        wait_in_slot(counter, epoch, SIGNALS, status, spin_limit)
        columns = tl.arange(0, BLOCK_N)
        inside = (row + rows < M)[:, None] & (columns < N)[None, :]
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for source in tl.static_range(SOURCES):
            block = tl.cast(index + source * apart, tl.int64)
            place = inbox + (block * BLOCK_M + rows)[:, None] * N + columns[None, :]
            acc += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    return acc


@triton.jit
def share_part(
    part, block, blocks, column, row, M, N, epoch, rank, inbox, arrivals, heap_bases, TYPE: tl.constexpr,
    WORLD: tl.constexpr, MODE: tl.constexpr, PROTOCOL: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Send our part of a block, WIDTH columns from ``column`` on, to those who sum it."""
    slot = (epoch & 1).to(tl.int32)
    counter = arrivals + slot * blocks + block
    if MODE == ONE_SHOT:
        deliver(
            part, inbox, (slot * WORLD + rank) * blocks + block, counter, rank, column, row, M, N, epoch, rank,
            heap_bases, TYPE, WORLD, WORLD, PROTOCOL, BLOCK_M, WIDTH,
        )  # fmt: skip
    else:
        deliver(
            part, inbox, (slot * WORLD + rank) * tl.cdiv(blocks, WORLD) + block // WORLD, counter, block % WORLD,
            column, row, M, N, epoch, rank, heap_bases, TYPE, 1, WORLD, PROTOCOL, BLOCK_M, WIDTH,
        )  # fmt: skip


@triton.jit
def summed(
    block, blocks, row, M, N, epoch, rank, inbox, sums, arrivals, returns, heap_bases, status, spin_limit,
    TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr, PROTOCOL: tl.constexpr, SIGNALS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The sum of all ranks' parts of a block, fp32 [BLOCK_M, BLOCK_N]. Each rank signals SIGNALS times for its part."""
    slot = (epoch & 1).to(tl.int32)
    here = slot * blocks + block
    if MODE == ONE_SHOT:
        acc = collect(
            inbox, slot * WORLD * blocks + block, blocks, arrivals + here, row, M, N, epoch, status, spin_limit, TYPE,
            WORLD, WORLD * SIGNALS, PROTOCOL, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        if block % WORLD == rank:
            owned = tl.cdiv(blocks, WORLD)
            part = collect(
                inbox, slot * WORLD * owned + block // WORLD, owned, arrivals + here, row, M, N, epoch, status,
                spin_limit, TYPE, WORLD, WORLD * SIGNALS, PROTOCOL, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            deliver(
                part, sums, here, returns + here, rank, 0, row, M, N, epoch, rank, heap_bases, TYPE, WORLD, WORLD,
                PROTOCOL, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        acc = collect(
            sums, here, 0, returns + here, row, M, N, epoch, status, spin_limit, TYPE, 1, 1, PROTOCOL, BLOCK_M, BLOCK_N
        )  # fmt: skip
    return acc


@triton.jit(do_not_specialize=["M", "rank", "spin_limit"])
def all_reduce_norm_kernel(
    x, residual, weight, normed, total, inbox, sums, M, N, eps, rank,
    heap_bases, epoch_counter, arrivals, returns, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr,
    MODE: tl.constexpr, PROTOCOL: tl.constexpr, SENDERS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Total [M, N] = sum over ranks of x [M, N] + residual; normed = its RMSNorm * weight [N]. All are of TYPE.

    BLOCK_N is the power of two from N on. With SENDERS, as many programs for each block come first and only send.
    """
    pid = tl.program_id(0)
    blocks = tl.cdiv(M, BLOCK_M)
    epoch = wide_epoch(epoch_counter)
    sending = blocks * SENDERS
    if pid < sending:
        if SENDERS > 0:
            WIDTH: tl.constexpr = BLOCK_N // SENDERS
            block, column = pid // SENDERS, pid % SENDERS * WIDTH
            part = load_rows(x, block * BLOCK_M, M, column, N, BLOCK_M, WIDTH)
            share_part(
                part, block, blocks, column, block * BLOCK_M, M, N, epoch, rank, inbox, arrivals, heap_bases, TYPE,
                WORLD, MODE, PROTOCOL, BLOCK_M, WIDTH,
            )  # fmt: skip
        finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
    else:
        block = pid - sending
        row = block * BLOCK_M
        if SENDERS == 0:
            part = load_rows(x, row, M, 0, N, BLOCK_M, BLOCK_N)
            share_part(
                part, block, blocks, 0, row, M, N, epoch, rank, inbox, arrivals, heap_bases, TYPE,
                WORLD, MODE, PROTOCOL, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        # Fetched before the wait, for they hang on no peer.
        own, scale = load_rows(residual, row, M, 0, N, BLOCK_M, BLOCK_N), load_rows(weight, 0, 1, 0, N, 1, BLOCK_N)
        acc = summed(
            block, blocks, row, M, N, epoch, rank, inbox, sums, arrivals, returns, heap_bases, status, spin_limit,
            TYPE, WORLD, MODE, PROTOCOL, 1 if SENDERS == 0 else SENDERS, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        in_vain = heap.timed_out(status)
        add_and_norm(acc, own, scale, normed, total, row, M, N, eps, TYPE, BLOCK_M, BLOCK_N)
        finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
        heap.seal_if(in_vain, normed, tl.cast(M, tl.int64) * N, total, BY_TMA=False)


@triton.jit(do_not_specialize=["M"])
def add_norm_kernel(
    x, residual, weight, normed, total, M, N, eps,
    TYPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Total = x + residual, normed = its RMSNorm * weight: what comes after an all-reduce of the library's."""
    row = tl.program_id(0) * BLOCK_M
    own, scale = load_rows(residual, row, M, 0, N, BLOCK_M, BLOCK_N), load_rows(weight, 0, 1, 0, N, 1, BLOCK_N)
    acc = load_rows(x, row, M, 0, N, BLOCK_M, BLOCK_N).to(tl.float32)
    add_and_norm(acc, own, scale, normed, total, row, M, N, eps, TYPE, BLOCK_M, BLOCK_N)
