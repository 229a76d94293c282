"""Equal shares of a batch's KV tokens: which program attends to what, found on the device from the lengths.

Every sequence is cut into blocks of BLOCK_N tokens, and has one block more without any: about what it costs a program
to begin with a sequence, and what an empty one consists of, so that each has a program that answers for it. The blocks
of all sequences stand in one row, and program p of P takes those from p * total // P up to (p + 1) * total // P: of
several short sequences, or a part of a long one. P is at most the number of blocks, so that no share is empty; programs
beyond have none.

APART, of an invariant problem: every sequence is shared out by itself among all programs, so that where it is cut
depends on its own length alone. Each program then leaves a part of each sequence, an empty one of the short ones.

Nothing of it is stored: every program counts for itself, CHUNK sequences at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def blocks_of(length, BLOCK_N: tl.constexpr):
    return tl.cdiv(length, BLOCK_N) + 1


@triton.jit
def blocks_of_all(lengths, batch, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr):
    blocks = 0
    for first in range(0, batch, CHUNK):
        each = first + tl.arange(0, CHUNK)
        length = tl.load(lengths + each, mask=each < batch, other=0)
        blocks += tl.sum(tl.where(each < batch, blocks_of(length, BLOCK_N), 0), axis=0)
    return blocks


@triton.jit
def sequence_of(block, lengths, batch, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr):
    """The sequence that a block belongs to, and its first block."""
    sequence = 0
    begin = 0
    before = 0
    for first in range(0, batch, CHUNK):
        each = first + tl.arange(0, CHUNK)
        length = tl.load(lengths + each, mask=each < batch, other=0)
        ends = before + tl.cumsum(tl.where(each < batch, blocks_of(length, BLOCK_N), 0), axis=0)
        passed = (each < batch) & (ends <= block)
        sequence += tl.sum(passed.to(tl.int32), axis=0)
        begin = tl.maximum(begin, tl.max(tl.where(passed, ends, 0), axis=0))
        before = tl.max(ends, axis=0)
    return sequence, begin


@triton.jit
def share_of(program, total, programs):
    """The first block of a program, and the one after its last: both ``total`` for programs that get none."""
    programs = tl.minimum(programs, total)
    begin = tl.cast(program, tl.int64) * total // programs
    end = tl.cast(program + 1, tl.int64) * total // programs
    return tl.minimum(begin, total).to(tl.int32), tl.minimum(end, total).to(tl.int32)


@triton.jit
def heads_of(
    pid, head_blocks, programs, heads_of_group, HEADS_FIRST: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr
):
    """The head block of a program and its number among those of the block; the KV head, the first query head, and the
    one after the last.
    """
    if HEADS_FIRST:
        head_block = pid % head_blocks
        program = pid // head_blocks
    else:
        head_block = pid // programs
        program = pid % programs
    kv_head = head_block // BLOCKS
    first_head = kv_head * heads_of_group + head_block % BLOCKS * HPP
    end_head = kv_head * heads_of_group + tl.minimum(heads_of_group, (head_block % BLOCKS + 1) * HPP)
    return head_block, program, kv_head, first_head, end_head


@triton.jit
def programs_of(begin, end, total, programs):
    """The first of the programs that share blocks [begin, end), and how many they are."""
    programs = tl.minimum(programs, total).to(tl.int64)
    first = ((begin + 1) * programs - 1) // total
    last = (end * programs - 1) // total
    return first.to(tl.int32), (last - first + 1).to(tl.int32)


@triton.jit
def programs_of_sequence(
    sequence, lengths, batch, programs, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, APART: tl.constexpr
):
    """The first of the programs that share a sequence, and how many they are. APART instead of the first one: how far
    the sequence's places among the parts are moved, see ``part_of``.
    """
    if APART:
        first = sequence * (programs - 1)
        count = programs
    else:
        begin = 0
        total = 0
        for chunk in range(0, batch, CHUNK):
            each = chunk + tl.arange(0, CHUNK)
            length = tl.load(lengths + each, mask=each < batch, other=0)
            blocks = tl.where(each < batch, blocks_of(length, BLOCK_N), 0)
            begin += tl.sum(tl.where(each < sequence, blocks, 0), axis=0)
            total += tl.sum(blocks, axis=0)
        end = begin + blocks_of(tl.load(lengths + sequence), BLOCK_N)
        first, count = programs_of(begin, end, total, programs)
    return first, count
