"""Device code of the dispatch: one kernel, one launch. What it is made of lies in ``kernels/moe``.

Programs by their ids: those that send the routing; those that move tokens (``push``: to the peers; ``pull``: from
them); one per local expert that plans; those that lay rows out by expert, in turns. Each waits only for programs with
lower ids, of its own rank or of others, and the first do not wait: no wait starves its producer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.plan import plan_expert, send_routing
from autotune.kernels.moe.tokens import fetch_tokens, push_tokens, read_tokens, wait_for_tokens
from autotune.kernels.primitives.counters import finish, wait_for_all, wait_in_slot, wide_epoch


@triton.jit
def lay_out(
    rows, offsets, pairs, inbox, arrivals, T, H, K, local, epoch, part, parts, status, spin_limit, TYPE: tl.constexpr,
    WORLD: tl.constexpr, LL: tl.constexpr, TOKENS: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy the rows of a plan that is there from the inbox, as they arrive, ROWS at a time."""
    slot = (epoch & 1).to(tl.int32)
    end = tl.load(offsets + local)
    for first in range(part * ROWS, end, parts * ROWS):
        row = first + tl.arange(0, ROWS)
        exists = row < end
        token = tl.load(pairs + row, mask=exists, other=0) // K
        if not LL:
            token += wait_for_tokens(arrivals, token, exists, T, SPLIT, epoch, status, spin_limit, WORLD, TOKENS)
        place = slot.to(tl.int64) * WORLD * T + token
        for column in range(0, H, COLUMNS):
            value = read_tokens(inbox, place, exists, column, H, epoch, status, spin_limit, TYPE, LL, ROWS, COLUMNS)
            columns = column + tl.arange(0, COLUMNS)
            to = rows + row.to(tl.int64)[:, None] * H + columns[None, :]
            tl.store(to, value, mask=exists[:, None] & (columns < H)[None, :])


@triton.jit(do_not_specialize=["T", "rank", "spin_limit"])
def dispatch_kernel(
    x, ids, gates, rows, offsets, pairs, row_gates, routed, routings, inbox, arrivals, planned, done,
    T, H, K, local, capacity, routing_parts, comm_programs, rank, heap_bases, epoch_counter, status, spin_limit,
    TYPE: tl.constexpr, WORLD: tl.constexpr, PULL: tl.constexpr, LL: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr, ROWS: tl.constexpr,
    ROW_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Rows [capacity, H] = tokens x [T, H] of all ranks by this rank's experts, with their plan."""
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = wide_epoch(epoch_counter)
    first_plan = routing_parts + comm_programs
    first_row = first_plan + local
    if pid < routing_parts:
        send_routing(
            ids, gates, routed, routings, T * K, epoch, pid, routing_parts, rank, heap_bases, WORLD, LL, STEP
        )  # fmt: skip
    elif pid < first_plan:
        part = pid - routing_parts
        if PULL:
            fetch_tokens(
                x, routed, routings, routing_parts, inbox, arrivals, done, T, H, K, local, epoch, part,
                comm_programs, rank, heap_bases, status, spin_limit, WORLD, TOKENS, COLUMNS, SPLIT, CHOICES,
            )  # fmt: skip
        else:
            push_tokens(
                x, ids, inbox, arrivals, T, H, K, local, epoch, part, comm_programs, rank, heap_bases, WORLD, LL,
                TOKENS, COLUMNS, SPLIT, CHOICES,
            )  # fmt: skip
    elif pid < first_row:
        plan_expert(
            pid - first_plan, routed, routings, routing_parts, offsets, pairs, row_gates, T * K, local, capacity,
            epoch, rank, status, spin_limit, WORLD, LL, STEP,
        )  # fmt: skip
        heap.signal(planned + (epoch & 1).to(tl.int32), rank, rank, heap_bases)
    else:
        wait_in_slot(planned + (epoch & 1).to(tl.int32), epoch, local, status, spin_limit)
        lay_out(
            rows, offsets, pairs, inbox, arrivals, T, H, K, local, epoch, pid - first_row, programs - first_row,
            status, spin_limit, TYPE, WORLD, LL, TOKENS, SPLIT, ROWS, ROW_COLUMNS,
        )  # fmt: skip
    if finish(epoch_counter, programs):
        if PULL:
            wait_for_all(done, ((epoch + 1) * comm_programs).to(tl.int32), status, spin_limit, WORLD)
