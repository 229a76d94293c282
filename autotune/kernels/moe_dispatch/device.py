"""Device code of the dispatch: one kernel, one launch. Behind the exchange and the plan (``moe/arrivals.py``) come
programs that lay rows out by expert, in turns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.arrivals import exchange_and_plan
from autotune.kernels.moe.plan import Moves, Plan, Routing
from autotune.kernels.moe.tokens import Inbox, Tokens, read_tokens, wait_for_tokens
from autotune.kernels.primitives.counters import finish, read_epoch, wait_for_all, wait_in_slot
from autotune.kernels.primitives.known import known


@triton.jit
def lay_out(
    late, rows, scale_rows, tokens, inbox, plan, before, epoch, peers, FORM: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """Copy the rows of a plan that is there, ROWS at a time: our own from x, the others' from the inbox as they
    arrive; and PER_ROW scales of each, where there are any. None if the plan is ``late``. Programs ``before`` these do
    something else.
    """
    T, H = tokens.T, tokens.H
    TYPE: tl.constexpr = rows.dtype.element_ty
    slot = (epoch & 1).to(tl.int32)
    end = tl.load(plan.offsets + plan.local) * (1 - late)
    for first in range((tl.program_id(0) - before) * ROWS, end, (tl.num_programs(0) - before) * ROWS):
        row = first + tl.arange(0, ROWS)
        exists = row < end
        # Behind a wait that timed out the plan may be anything.
        token = tl.load(plan.pairs + row, mask=exists, other=0) // tokens.K
        token = tl.minimum(tl.maximum(token, 0), FORM.WORLD * T - 1)
        ours = exists & (token // T == peers.rank)
        theirs = exists & (token // T != peers.rank)
        if not FORM.LL:
            token += wait_for_tokens(
                inbox.arrivals, token, theirs, T, FORM.SPLIT, epoch, peers, FORM.WORLD, FORM.TOKENS
            )  # fmt: skip
        place = slot.to(tl.int64) * FORM.WORLD * T + token
        here = tokens.x + (token % T).to(tl.int64)[:, None] * H
        for column in range(0, H, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            value = read_tokens(inbox.data, place, theirs, column, H, epoch, peers, TYPE, FORM.LL, COLUMNS)
            own = tl.load(here + columns[None, :], mask=ours[:, None] & (columns < H)[None, :], other=0.0)
            value = tl.where(ours[:, None], own, value)
            to = rows + row.to(tl.int64)[:, None] * H + columns[None, :]
            tl.store(to, value, mask=exists[:, None] & (columns < H)[None, :])
        if PER_ROW:
            number = tl.arange(0, triton.next_power_of_2(PER_ROW))[None, :]
            inside = number < PER_ROW
            here = tokens.scales + (token % T)[:, None] * PER_ROW + number
            own = tl.load(here, mask=ours[:, None] & inside, other=0.0)
            there = tl.load(inbox.scales + place[:, None] * PER_ROW + number, mask=theirs[:, None] & inside, other=0.0)
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
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    tokens = Tokens(x, ids, gates, T, H, K, local, scale_x, PER_ROW)
    routing = Routing(routed, routings, routing_parts, T * K)
    box = Inbox(inbox, arrivals, done, scale_inbox)
    plan = Plan(offsets, pairs, row_gates, own_rows, local, capacity)
    MOVES: tl.constexpr = known(Moves, WORLD, STEP, ROUTING_LL, LL, PULL, TOKENS, COLUMNS, SPLIT, CHOICES)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    first_row = routing_parts + comm_programs + local
    if pid < first_row:
        exchange_and_plan(pid, tokens, routing, box, plan, planned, comm_programs, epoch, peers, MOVES)
    else:
        late = wait_in_slot(planned + (epoch & 1).to(tl.int32), epoch, local, peers)
        lay_out(late, rows, scale_rows, tokens, box, plan, first_row, epoch, peers, MOVES, ROWS, ROW_COLUMNS, PER_ROW)
    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    if finish(epoch_counter, programs):
        if PULL:  # until peers have read what they read from us
            wait_for_all(done, (epoch + 1) * comm_programs, peers, WORLD)
    heap.seal_if(in_vain, rows, tl.cast(capacity, tl.int64) * H)
    heap.clear_if(in_vain, offsets, local + 1)  # of a plan that the library takes at its word
    if product is not None:
        heap.seal_if(in_vain, product, tl.cast(capacity, tl.int64) * width)


@triton.jit
def select_rows_kernel(tokens, place, end, rows, columns, stride, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    """Rows [.., columns] before ``end`` int32 [1]: that of ``tokens``, ``stride`` apart, whose number is ``place`` over
    CHOICES.
    """
    for row in range(tl.program_id(0), tl.load(end), tl.num_programs(0)):
        token = (tl.load(place + row) // CHOICES).to(tl.int64)
        for first in range(0, columns, BLOCK):
            column = first + tl.arange(0, BLOCK)
            there = column < columns
            value = tl.load(tokens + token * stride + column, mask=there)
            tl.store(rows + tl.cast(row, tl.int64) * columns + column, value, mask=there)
