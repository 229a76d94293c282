"""Attention to a latent cache by warp specialization, in Gluon, for sm_90: four warps copy tokens into a ring of steps,
two groups of four multiply.

With queries and two steps the shared memory is full. A step is given back once its values are multiplied, and its copy
begins at once, whatever the next step's logits wait for.

    loading     copies step s + 1 …
    first half  logits of s, weights ─┬─ values[:, : D / 2] of s
    other half                        └─ values[:, D / 2 :] of s

The weights and their rows' factors go to the other half through shared memory. The table gives a token's row of the
cache, so that pages have any size. What follows the attention is ``device.reduce_kernel``'s.
"""

from __future__ import annotations

from collections import namedtuple

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from autotune.kernels.flash_decode.exchange import part_of
from autotune.kernels.flash_decode.shares import blocks_of, heads_of, share_of
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.specialized import copy_async

REGISTERS = gl.constexpr(216)
LOADING_REGISTERS = gl.constexpr(72)
"""Registers of a multiplying thread and of a loading one: 168 on average."""
CHUNK = gl.constexpr(128)
"""Sequences that a program scans at once."""

Latent = namedtuple("Latent", "D ROPE HEADS BLOCK_N PAGE STAGES")
"""HEADS rows attend to BLOCK_N tokens at once, of D elements and ROPE that belong to the key alone."""

Ring = namedtuple("Ring", "value turned empty ready")
"""Steps [STAGES, BLOCK_N, D] and [STAGES, BLOCK_N, ROPE], and their barriers."""

Query = namedtuple("Query", "value turned empty ready")
"""[HEADS, D] and [HEADS, ROPE]"""

Given = namedtuple("Given", "weights factor empty ready")
"""A step's weights [HEADS, BLOCK_N], and what the sums so far are multiplied by, fp32 [HEADS]; after a sequence's last
step a factor alone.
"""

Share = namedtuple("Share", "block stop sequence begin")
"""The blocks of a program, and the sequence to which the first of them belongs, with that one's first."""

Batch = namedtuple("Batch", "q cache width table lengths table_width q_heads first_head end_head scale")
"""``width`` elements are from one token to the next."""

Parts = namedtuple("Parts", "results lse program programs")


@gluon.jit
def _sum(a, b):
    return a + b


@gluon.jit
def share(program, programs, lengths, batch, BLOCK_N: gl.constexpr, WARPS: gl.constexpr):
    """A program's share, see ``shares.py``."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    total = 0
    for first in range(0, batch, CHUNK):
        each = first + gl.arange(0, CHUNK, layout=layout)
        length = gl.load(lengths + each, mask=each < batch, other=0)
        total += gl.sum(gl.where(each < batch, blocks_of(length, BLOCK_N), 0), axis=0)
    block, stop = share_of(program, total, programs)
    sequence = 0
    begin = 0
    before = 0
    for first in range(0, batch, CHUNK):
        each = first + gl.arange(0, CHUNK, layout=layout)
        length = gl.load(lengths + each, mask=each < batch, other=0)
        blocks = gl.where(each < batch, blocks_of(length, BLOCK_N), 0)
        ends = before + gl.associative_scan(blocks, 0, _sum)
        passed = (each < batch) & (ends <= block)
        sequence += gl.sum(passed.to(gl.int32), axis=0)
        begin = gl.maximum(begin, gl.max(gl.where(passed, ends, 0), axis=0))
        before = gl.max(ends, axis=0)
    return Share(block, stop, sequence, begin)


@gluon.jit
def tokens_of(block, stop, begin, length, BLOCK_N: gl.constexpr):
    """The tokens of a sequence that are among a program's blocks, and the block after the sequence's last."""
    end = begin + blocks_of(length, BLOCK_N)
    return (block - begin) * BLOCK_N, gl.minimum(length, (gl.minimum(end, stop) - begin) * BLOCK_N), end


@gluon.jit
def copy_rows(target, source, rows, columns):
    copy_async(target, source + rows.to(gl.int64)[:, None] + columns[None, :])


@gluon.jit
def loading(mine, batch, ring, query, FORM: gl.constexpr, WARPS: gl.constexpr):
    """Copy the queries of each of our sequences, and the steps of its tokens."""
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // FORM.ROPE, FORM.ROPE // 8], [WARPS, 1], [1, 0])
    heads = gl.arange(0, FORM.HEADS, layout=gl.SliceLayout(1, wide))
    heads_turned = gl.arange(0, FORM.HEADS, layout=gl.SliceLayout(1, narrow))
    tokens = gl.arange(0, FORM.BLOCK_N, layout=gl.SliceLayout(1, wide))
    tokens_turned = gl.arange(0, FORM.BLOCK_N, layout=gl.SliceLayout(1, narrow))
    columns = gl.arange(0, FORM.D, layout=gl.SliceLayout(0, wide))
    turned = FORM.D + gl.arange(0, FORM.ROPE, layout=gl.SliceLayout(0, narrow))
    WIDTH: gl.constexpr = FORM.D + FORM.ROPE
    block, stop, sequence, begin = mine
    step = 0
    turn = 0
    while block < stop:
        first, last, end = tokens_of(block, stop, begin, gl.load(batch.lengths + sequence), FORM.BLOCK_N)
        if first < last:
            mbarrier.wait(query.empty, (turn & 1) ^ 1)
            row = sequence * batch.q_heads + batch.first_head
            most = batch.end_head - batch.first_head - 1
            copy_rows(query.value, batch.q, (row + gl.minimum(heads, most)) * WIDTH, columns)
            copy_rows(query.turned, batch.q, (row + gl.minimum(heads_turned, most)) * WIDTH, turned)
            async_copy.mbarrier_arrive(query.ready, increment_count=False)
            turn += 1
        table = batch.table + tl.cast(sequence, tl.int64) * batch.table_width
        for start in range(first, last, FORM.BLOCK_N):
            stage = step % FORM.STAGES
            rows = rows_of(table, gl.minimum(start + tokens, last - 1), FORM.PAGE)
            rows_turned = rows_of(table, gl.minimum(start + tokens_turned, last - 1), FORM.PAGE)
            mbarrier.wait(ring.empty.index(stage), ((step // FORM.STAGES) & 1) ^ 1)
            copy_rows(ring.value.index(stage), batch.cache, rows.to(gl.int64) * batch.width, columns)
            copy_rows(ring.turned.index(stage), batch.cache, rows_turned.to(gl.int64) * batch.width, turned)
            async_copy.mbarrier_arrive(ring.ready.index(stage), increment_count=False)
            step += 1
        block = gl.minimum(end, stop)
        begin = end
        sequence += 1


@gluon.jit
def rows_of(table, tokens, PAGE: gl.constexpr):
    """Rows of the cache, int32."""
    return gl.load(table + tokens // PAGE) * PAGE + tokens % PAGE


@gluon.jit
def first_half(mine, batch, parts, ring, query, given, trace, number, FORM: gl.constexpr):
    """The logits and weights of each step, and the first half of the values' columns. ``number``: of the program."""
    HALF: gl.constexpr = FORM.D // 2
    of_logits: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FORM.BLOCK_N, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    tokens = gl.arange(0, FORM.BLOCK_N, layout=gl.SliceLayout(0, of_logits))
    zero = gl.zeros((FORM.HEADS, FORM.BLOCK_N), dtype=gl.float32, layout=of_logits)
    block, stop, sequence, begin = mine
    step = 0
    turn = 0
    sent = 0
    traces.begin(trace, traces.TILE, 0, number)
    while block < stop:
        first, last, end = tokens_of(block, stop, begin, gl.load(batch.lengths + sequence), FORM.BLOCK_N)
        acc = gl.zeros((FORM.HEADS, HALF), dtype=gl.float32, layout=layout)
        total = gl.full((FORM.HEADS,), 0.0, gl.float32, layout=gl.SliceLayout(1, of_logits))
        largest = gl.full((FORM.HEADS,), float("-inf"), gl.float32, layout=gl.SliceLayout(1, of_logits))
        if first < last:
            mbarrier.wait(query.ready, turn & 1)
        for start in range(first, last, FORM.BLOCK_N):
            stage = step % FORM.STAGES
            mbarrier.wait(ring.ready.index(stage), (step // FORM.STAGES) & 1)
            fence_async_shared()  # what was copied belongs to another proxy
            key = ring.value.index(stage).permute((1, 0))
            key_turned = ring.turned.index(stage).permute((1, 0))
            logits = warpgroup_mma(query.turned, key_turned, zero, use_acc=False, is_async=True)
            logits = warpgroup_mma(query.value, key, logits, is_async=True)
            logits = warpgroup_mma_wait(num_outstanding=0, deps=[logits])
            logits = gl.where((start + tokens < last)[None, :], logits * batch.scale, float("-inf"))
            new_largest = gl.maximum(largest, gl.max(logits, axis=1))
            weights = gl.exp2(logits - new_largest[:, None])
            factor = gl.exp2(largest - new_largest)
            total = total * factor + gl.sum(weights, axis=1)
            largest = new_largest
            mbarrier.wait(given.empty, (sent & 1) ^ 1)
            given.weights.store(weights.to(given.weights.dtype))
            given.factor.store(factor)
            fence_async_shared()
            tl.debug_barrier()
            mbarrier.arrive(given.ready, count=1)
            sent += 1
            acc *= gl.convert_layout(factor, gl.SliceLayout(1, layout))[:, None]
            value = ring.value.index(stage).slice(0, HALF, dim=1)
            acc = warpgroup_mma(given.weights, value, acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
            mbarrier.arrive(ring.empty.index(stage), count=1)
            step += 1
        if first < last:
            mbarrier.arrive(query.empty, count=1)
            turn += 1
        empty = total == 0.0
        divisor = gl.where(empty, 1.0, total)
        factor = 1.0 / divisor
        mbarrier.wait(given.empty, (sent & 1) ^ 1)
        given.factor.store(factor)
        tl.debug_barrier()
        mbarrier.arrive(given.ready, count=1)
        sent += 1
        acc *= gl.convert_layout(factor, gl.SliceLayout(1, layout))[:, None]
        store_part(acc, parts, sequence, batch, 0, layout, FORM)
        heads = batch.first_head + gl.arange(0, FORM.HEADS, layout=gl.SliceLayout(1, of_logits))
        rows = part_of(sequence, parts.program, parts.programs, False) * batch.q_heads + heads
        lse = gl.where(empty, float("-inf"), largest + gl.log2(divisor))
        gl.store(parts.lse + rows, lse, mask=heads < batch.end_head)
        block = gl.minimum(end, stop)
        begin = end
        sequence += 1
    traces.end(trace, traces.TILE, 0)


@gluon.jit
def other_half(mine, batch, parts, ring, given, FORM: gl.constexpr):
    """The other half of the values' columns, by the weights that the first one gives."""
    HALF: gl.constexpr = FORM.D // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    block, stop, sequence, begin = mine
    step = 0
    taken = 0
    while block < stop:
        first, last, end = tokens_of(block, stop, begin, gl.load(batch.lengths + sequence), FORM.BLOCK_N)
        acc = gl.zeros((FORM.HEADS, HALF), dtype=gl.float32, layout=layout)
        for _ in range(first, last, FORM.BLOCK_N):
            stage = step % FORM.STAGES
            mbarrier.wait(given.ready, taken & 1)
            fence_async_shared()  # of the copies, which the first half has waited for
            acc *= given.factor.load(gl.SliceLayout(1, layout))[:, None]
            value = ring.value.index(stage).slice(HALF, HALF, dim=1)
            acc = warpgroup_mma(given.weights, value, acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
            tl.debug_barrier()
            mbarrier.arrive(given.empty, count=1)
            mbarrier.arrive(ring.empty.index(stage), count=1)
            taken += 1
            step += 1
        mbarrier.wait(given.ready, taken & 1)
        acc *= given.factor.load(gl.SliceLayout(1, layout))[:, None]
        tl.debug_barrier()
        mbarrier.arrive(given.empty, count=1)
        taken += 1
        store_part(acc, parts, sequence, batch, HALF, layout, FORM)
        block = gl.minimum(end, stop)
        begin = end
        sequence += 1


@gluon.jit
def store_part(acc, parts, sequence, batch, column, layout: gl.constexpr, FORM: gl.constexpr):
    """Half of a sequence's part, from a column on."""
    heads = batch.first_head + gl.arange(0, FORM.HEADS, layout=gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, FORM.D // 2, layout=gl.SliceLayout(0, layout))
    rows = part_of(sequence, parts.program, parts.programs, False) * batch.q_heads + heads
    place = parts.results + rows.to(gl.int64)[:, None] * FORM.D + columns[None, :]
    gl.store(place, acc, mask=(heads < batch.end_head)[:, None])


@gluon.jit(do_not_specialize=["head_blocks", "programs", "batch", "heads_of_group", "kv_heads", "table_width"])
def specialized_kernel(
    q, keys, table, lengths, parts, part_lse, scale, trace,
    head_blocks, programs, batch, heads_of_group, kv_heads, table_width,
    D: gl.constexpr, ROPE: gl.constexpr, HEADS: gl.constexpr, HPP: gl.constexpr, BLOCKS: gl.constexpr,
    BLOCK_N: gl.constexpr, PAGE: gl.constexpr, STAGES: gl.constexpr, HEADS_FIRST: gl.constexpr,
    LOADING: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Attention of ``head_blocks`` * ``programs`` programs to a latent cache, as in ``device.attend_kernel``. A program
    has HPP heads, in a tile of HEADS rows.
    """
    FORM: gl.constexpr = known(Latent, D, ROPE, HEADS, BLOCK_N, PAGE, STAGES)
    TYPE: gl.constexpr = keys.dtype.element_ty
    head_block, program, kv_head, first_head, end_head = heads_of(
        gl.program_id(0), head_blocks, programs, heads_of_group, HEADS_FIRST, BLOCKS, HPP
    )
    mine = share(program, programs, lengths, batch, BLOCK_N, num_warps)
    WIDTH: gl.constexpr = D + ROPE
    rows = Batch(
        q, keys + kv_head * WIDTH, kv_heads * WIDTH, table, lengths, table_width, kv_heads * heads_of_group, first_head,
        end_head, scale,
    )  # fmt: skip
    found = Parts(parts, part_lse, program, programs)

    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], TYPE)
    narrow: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, ROPE], TYPE)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, BLOCK_N], TYPE)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ring = Ring(
        gl.allocate_shared_memory(TYPE, [STAGES, BLOCK_N, D], wide),
        gl.allocate_shared_memory(TYPE, [STAGES, BLOCK_N, ROPE], narrow),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()),
    )
    query = Query(
        gl.allocate_shared_memory(TYPE, [HEADS, D], wide),
        gl.allocate_shared_memory(TYPE, [HEADS, ROPE], narrow),
        gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()),
    )
    given = Given(
        gl.allocate_shared_memory(TYPE, [HEADS, BLOCK_N], square),
        gl.allocate_shared_memory(gl.float32, [HEADS], plain),
        gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()),
    )
    for i in gl.static_range(STAGES):
        mbarrier.init(ring.empty.index(i), count=2)
        mbarrier.init(ring.ready.index(i), count=LOADING * 32)
    mbarrier.init(query.empty, count=1)
    mbarrier.init(query.ready, count=LOADING * 32)
    mbarrier.init(given.empty, count=1)
    mbarrier.init(given.ready, count=1)
    gl.warp_specialize(
        [
            (first_half, (mine, rows, found, ring, query, given, trace, head_block * programs + program, FORM)),
            (other_half, (mine, rows, found, ring, given, FORM)),
            (loading, (mine, rows, ring, query, FORM, LOADING)),
        ],
        [num_warps, LOADING],
        [REGISTERS, LOADING_REGISTERS],
    )
