"""The beginning of every dispatch, in one launch with the readers of the tokens: routing, tokens, and the plan.

Programs by their ids: those that send the routing; those that move tokens (PULL: from the peers, otherwise to them);
one for each local expert that plans; then the caller's own, which wait for the plan and for the tokens that they read.
Each waits only for programs with lower ids, of its own rank or of others, and the first do not wait: no wait starves
its producer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.plan import plan_expert, send_routing
from autotune.kernels.moe.tokens import fetch_tokens, push_tokens
from autotune.kernels.primitives.counters import finish, wait_for_all, wait_in_slot


@triton.jit
def exchange_and_plan(
    pid, x, ids, gates, offsets, pairs, row_gates, own_rows, routed, routings, inbox, arrivals, planned, done,
    T, H, K, local, capacity, routing_parts, comm_programs, epoch, rank, heap_bases, status, spin_limit,
    WORLD: tl.constexpr, PULL: tl.constexpr, LL: tl.constexpr, ROUTING_LL: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr, scales=None,
    scale_inbox=None, per_row=1,
):  # fmt: skip
    """The part of one of the first routing_parts + comm_programs + local programs. ``scales`` [T, per_row]: of x."""
    first_plan = routing_parts + comm_programs
    if pid < routing_parts:
        send_routing(
            ids, gates, routed, routings, T * K, epoch, pid, routing_parts, rank, heap_bases, WORLD, ROUTING_LL, STEP
        )  # fmt: skip
    elif pid < first_plan:
        part = pid - routing_parts
        if PULL:
            fetch_tokens(
                x, routed, routings, routing_parts, inbox, arrivals, done, T, H, K, local, epoch, part, comm_programs,
                rank, heap_bases, status, spin_limit, WORLD, TOKENS, COLUMNS, SPLIT, CHOICES, scales, scale_inbox,
                per_row,
            )  # fmt: skip
        else:
            push_tokens(
                x, ids, inbox, arrivals, T, H, K, local, epoch, part, comm_programs, rank, heap_bases, WORLD, LL,
                TOKENS, COLUMNS, SPLIT, CHOICES, scales, scale_inbox, per_row,
            )  # fmt: skip
    else:
        plan_expert(
            pid - first_plan, routed, routings, routing_parts, offsets, pairs, row_gates, own_rows, T * K, local,
            capacity, epoch, rank, status, spin_limit, WORLD, ROUTING_LL, STEP,
        )  # fmt: skip
        heap.signal(planned + (epoch & 1).to(tl.int32), rank, rank, heap_bases)


@triton.jit
def wait_for_plan(planned, local, epoch, status, spin_limit):
    """Wait until the rows of all local experts are listed. Returns 1 where it timed out and they may not be, else 0."""
    return wait_in_slot(planned + (epoch & 1).to(tl.int32), epoch, local, status, spin_limit)


@triton.jit
def finish_exchange(
    epoch_counter, programs, epoch, done, comm_programs, status, spin_limit, WORLD: tl.constexpr, PULL: tl.constexpr
):
    """This program has finished; the last one waits until peers have read what they read from us."""
    if finish(epoch_counter, programs):
        if PULL:
            wait_for_all(done, ((epoch + 1) * comm_programs).to(tl.int32), status, spin_limit, WORLD)
