"""Device code of the dispatch: one kernel, one launch. Behind the exchange and the plan (``moe/arrivals.py``) come
programs that lay rows out by expert, in turns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.arrivals import exchange_and_plan, finish_exchange, wait_for_plan
from autotune.kernels.moe.tokens import read_tokens, wait_for_tokens
from autotune.kernels.primitives.counters import wide_epoch


@triton.jit
def lay_out(
    late, x, rows, offsets, pairs, inbox, scale_x, scale_rows, scale_inbox, arrivals, T, H, K, local, epoch, part,
    parts, rank, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr, LL: tl.constexpr, TOKENS: tl.constexpr,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """Copy the rows of a plan that is there, ROWS at a time: our own from x, the others' from the inbox as they
    arrive; and PER_ROW scales of each, where there are any. None if the plan is ``late``.
    """
    slot = (epoch & 1).to(tl.int32)
    end = tl.load(offsets + local) * (1 - late)
    for first in range(part * ROWS, end, parts * ROWS):
        row = first + tl.arange(0, ROWS)
        exists = row < end
        # Behind a wait that timed out the plan may be anything.
        token = tl.minimum(tl.maximum(tl.load(pairs + row, mask=exists, other=0) // K, 0), WORLD * T - 1)
        ours = exists & (token // T == rank)
        theirs = exists & (token // T != rank)
        if not LL:
            token += wait_for_tokens(arrivals, token, theirs, T, SPLIT, epoch, status, spin_limit, WORLD, TOKENS)
        place = slot.to(tl.int64) * WORLD * T + token
        here = x + (token % T).to(tl.int64)[:, None] * H
        for column in range(0, H, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            value = read_tokens(inbox, place, theirs, column, H, epoch, status, spin_limit, TYPE, LL, ROWS, COLUMNS)
            own = tl.load(here + columns[None, :], mask=ours[:, None] & (columns < H)[None, :], other=0.0)
            value = tl.where(ours[:, None], own, value)
            to = rows + row.to(tl.int64)[:, None] * H + columns[None, :]
            tl.store(to, value, mask=exists[:, None] & (columns < H)[None, :])
        if PER_ROW:
            number = tl.arange(0, triton.next_power_of_2(PER_ROW))[None, :]
            inside = number < PER_ROW
            here = scale_x + (token % T)[:, None] * PER_ROW + number
            own = tl.load(here, mask=ours[:, None] & inside, other=0.0)
            there = tl.load(scale_inbox + place[:, None] * PER_ROW + number, mask=theirs[:, None] & inside, other=0.0)
            value = tl.where(ours[:, None], own, there)
            tl.store(scale_rows + row.to(tl.int64)[:, None] * PER_ROW + number, value, mask=exists[:, None] & inside)


@triton.jit(do_not_specialize=["T", "rank", "spin_limit"])
def dispatch_kernel(
    x, ids, gates, rows, offsets, pairs, row_gates, own_rows, routed, routings, inbox, scale_x, scale_rows,
    scale_inbox, arrivals, planned, done, product, width, T, H, K, local, capacity, routing_parts, comm_programs, rank,
    heap_bases, epoch_counter, status, spin_limit,
    TYPE: tl.constexpr, WORLD: tl.constexpr, PULL: tl.constexpr, LL: tl.constexpr,
    ROUTING_LL: tl.constexpr, STEP: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    CHOICES: tl.constexpr, ROWS: tl.constexpr, ROW_COLUMNS: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """Rows [capacity, H] = tokens x [T, H] of all ranks by this rank's experts, with their plan.

    ``product`` [capacity, width] or None: what a GEMM behind it makes of the rows that the plan names; sealed here, for
    after a time-out the plan names any.
    """
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = wide_epoch(epoch_counter)
    first_row = routing_parts + comm_programs + local
    if pid < first_row:
        exchange_and_plan(
            pid, x, ids, gates, offsets, pairs, row_gates, own_rows, routed, routings, inbox, arrivals, planned, done,
            T, H, K, local, capacity, routing_parts, comm_programs, epoch, rank, heap_bases, status, spin_limit,
            WORLD, PULL, LL, ROUTING_LL, STEP, TOKENS, COLUMNS, SPLIT, CHOICES, scale_x, scale_inbox, PER_ROW,
        )  # fmt: skip
    else:
        late = wait_for_plan(planned, local, epoch, status, spin_limit)
        lay_out(
            late, x, rows, offsets, pairs, inbox, scale_x, scale_rows, scale_inbox, arrivals, T, H, K, local, epoch,
            pid - first_row, programs - first_row, rank, status, spin_limit, TYPE, WORLD, LL, TOKENS, SPLIT, ROWS,
            ROW_COLUMNS, PER_ROW,
        )  # fmt: skip
    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    finish_exchange(epoch_counter, programs, epoch, done, comm_programs, status, spin_limit, WORLD, PULL)
    heap.seal_if(in_vain, rows, tl.cast(capacity, tl.int64) * H)
    heap.clear_if(in_vain, offsets, local + 1)  # of a plan that the library takes at its word
    if product is not None:
        heap.seal_if(in_vain, product, tl.cast(capacity, tl.int64) * width)
