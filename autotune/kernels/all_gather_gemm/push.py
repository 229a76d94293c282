"""Kernels that push a shard of A to every peer and compute nothing: beside our GEMM, or before the library's."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import num_threads

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import arrive, finish, finish_unordered, read_epoch, wait_for_all
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.sentinel import pairs, sentinel_bits, sentinel_data, sentinel_take, together
from autotune.kernels.primitives.transfer import Inbox, Shard, Steps, begin_of, in_units, push_shard


@triton.jit(do_not_specialize=["M", "shard_rows", "transfer_rows", "finishing", "rank"])
def push_kernel(
    shard, inbox_pointer, scale_shard, scale_inbox, M, K, shard_rows, width, scale_columns, scale_pitch, transfer_rows,
    finishing, rank, heap_bases, epoch_counter, arrivals,
    WORLD: tl.constexpr, ROWS: tl.constexpr, GATHERED: tl.constexpr, SLOTS: tl.constexpr, ROTATE: tl.constexpr,
    STEP_ROWS: tl.constexpr, STEP_COLUMNS: tl.constexpr, VECTOR: tl.constexpr, HINT: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Push our shard to every peer's inbox, as a separate kernel; shares the epoch with the GEMM's programs."""
    peers = heap.Peers(rank, heap_bases, None, None)
    slot = (read_epoch(epoch_counter) & (SLOTS - 1)).to(tl.int32)
    ours = Shard(shard, shard_rows, in_units(width, VECTOR), scale_shard, scale_columns)
    inbox = Inbox(inbox_pointer, slot, M, in_units(K, VECTOR), arrivals, transfer_rows, scale_inbox, scale_pitch)
    FIRST: tl.constexpr = 0 if GATHERED else 1
    STEPS: tl.constexpr = known(
        Steps, WORLD, ROWS, CHUNKS if ROWS else 1, STEP_ROWS, STEP_COLUMNS, VECTOR, HINT, ROTATE, FIRST
    )
    push_shard(ours, inbox, tl.program_id(0), tl.num_programs(0), peers, STEPS)
    finish_unordered(epoch_counter, finishing, False)


@triton.jit(do_not_specialize=["M", "shard_rows", "rank", "spin_limit"])
def gather_kernel(
    shard, inbox_pointer, scale_shard, scale_inbox, M, K, shard_rows, width, scale_columns, scale_pitch, rank,
    heap_bases, epoch_counter, arrivals, ready, status, spin_limit,
    WORLD: tl.constexpr, ROWS: tl.constexpr, ROTATE: tl.constexpr,
    STEP_ROWS: tl.constexpr, STEP_COLUMNS: tl.constexpr, VECTOR: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """An all-gather: our shard into every rank's inbox, and the launch ends when everybody's is in ours."""
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    if pid == 0:
        arrive(ready, peers, WORLD)
    wait_for_all(ready, epoch + 1, peers, WORLD)
    ours = Shard(shard, shard_rows, in_units(width, VECTOR), scale_shard, scale_columns)
    inbox = Inbox(inbox_pointer, 0, M, in_units(K, VECTOR), arrivals, shard_rows, scale_inbox, scale_pitch)
    STEPS: tl.constexpr = known(Steps, WORLD, ROWS, 1, STEP_ROWS, STEP_COLUMNS, VECTOR, HINT, ROTATE, 0)
    push_shard(ours, inbox, pid, programs, peers, STEPS)
    if finish(epoch_counter, programs):
        wait_for_all(arrivals, (epoch + 1) * programs, peers, WORLD)
    heap.seal(status, inbox_pointer, tl.cast(M, tl.int64) * K)


@triton.jit(do_not_specialize=["M", "shard_rows", "rank", "spin_limit"])
def gather_words_kernel(
    shard, words, inbox_pointer, M, K, shard_rows, width, rank, heap_bases, epoch_counter, status, spin_limit,
    WORLD: tl.constexpr, ROWS: tl.constexpr, HINT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """An all-gather by sentinel words: each program sends its blocks of our shard to every peer, then takes the same
    blocks of every peer's shard from our ``words`` [2 slots, WORLD, elements of a shard] into our inbox.

    Nobody waits before sending. Each word has one reader, which empties it; who sends to a slot for epoch e has
    finished e - 1, hence had our words of e - 1, which we sent after our launch e - 2, the last to use the slot.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    epoch = read_epoch(epoch_counter)
    VECTOR: tl.constexpr = HINT * 8 // shard.dtype.element_ty.primitive_bitwidth
    width = in_units(width, VECTOR)
    K = in_units(K, VECTOR)
    elements = shard_rows.to(tl.int64) * width
    slot = words + (epoch & 1) * WORLD * elements
    blocks = tl.cdiv(elements, BLOCK).to(tl.int32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        at = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < elements
        value = tl.load(shard + at, mask=inside)
        place = begin_of(rank, shard_rows, width, 0, M, K, ROWS) + at // width * K + at % width
        bits = sentinel_bits(value)
        kept = sentinel_data(bits).to(inbox_pointer.dtype.element_ty, bitcast=True)
        tl.store(inbox_pointer + place, kept, mask=inside)
        for onwards in tl.static_range(1, WORLD):
            peer = (rank + onwards) % WORLD
            heap.store(slot + rank * elements + at, bits, rank, peer, heap_bases, mask=inside, hint=HINT)
    THREADS: tl.constexpr = num_threads() if heap.compiles_for_cuda() else 1
    PAIRS: tl.constexpr = HINT >= 4 and pairs(shard.dtype.element_ty, BLOCK, THREADS)
    PER: tl.constexpr = 2 if PAIRS else 1
    inbox = inbox_pointer
    if PAIRS:
        slot, inbox = slot.to(tl.pointer_type(tl.int32)), inbox.to(tl.pointer_type(tl.int32))
    STEP: tl.constexpr = BLOCK // PER
    TOGETHER: tl.constexpr = together(WORLD - 1, STEP)
    width, pitch = in_units(width // PER, VECTOR // PER), in_units(K // PER, VECTOR // PER)
    shard_words = shard_rows.to(tl.int64) * width
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        at = tl.cast(block, tl.int64) * STEP + tl.arange(0, STEP)
        within = at // width * pitch + at % width
        for first in tl.static_range(1, WORLD, TOGETHER):
            onwards = first + tl.arange(0, TOGETHER)
            source = (rank + onwards) % WORLD
            wanted = (onwards < WORLD)[:, None] & (at < shard_words)[None, :]
            taken = sentinel_take(slot + source[:, None] * shard_words + at[None, :], wanted, peers, PAIRS)
            begin = begin_of(source, shard_rows, width, 0, M, pitch, ROWS)
            place = inbox + begin[:, None] + within[None, :]
            tl.store(place, taken.to(inbox.dtype.element_ty, bitcast=True), mask=wanted)
    in_vain = heap.timed_out(status)
    finish_unordered(epoch_counter, tl.num_programs(0), tl.program_id(0) == 0)
    heap.seal_if(in_vain, inbox_pointer, tl.cast(M, tl.int64) * K)


@triton.jit(do_not_specialize=["M", "shard_rows", "rank"])
def return_kernel(
    shard, inbox_pointer, returned, epoch_counter, status, M, K, shard_rows, rank,
    GATHERED: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy what the launch before has gathered, [M, K]; our own rows from the shard unless they are GATHERED, too.

    It comes before our next launch, hence before anything that tells a peer that it may push into this slot again.
    """
    blocks = tl.cdiv(K, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < K
    slot = ((read_epoch(epoch_counter) - 1) & (SLOTS - 1)).to(tl.int32)
    source = inbox_pointer + (slot * M + row) * K
    if not GATHERED:
        if row // shard_rows == rank:
            source = shard + (row - rank * shard_rows) * K
    tl.store(returned + row * K + column, tl.load(source + column, mask=inside), mask=inside)
    heap.seal(status, returned, tl.cast(M, tl.int64) * K)
