"""Device code of dispatch + grouped GEMM: one kernel, one launch.

Behind the exchange and the plan (``moe/arrivals.py``) come programs that walk the tiles of the grouped GEMM. A tile's
rows of A are rows of the inbox, named by the plan, or of this rank's own x; its program waits for the blocks of tokens
that the former belong to. OWN_FIRST: tiles of own tokens alone, which wait for nothing but the plan, come before all
others, so that these are computed while the peers' tokens travel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe import grouped_gemm as grouped
from autotune.kernels.moe.arrivals import exchange_and_plan
from autotune.kernels.moe.plan import Moves, Plan, Routing
from autotune.kernels.moe.tokens import Inbox, Tokens, places_of, wait_for_tokens
from autotune.kernels.primitives.counters import finish, read_epoch, wait_for_all, wait_in_slot
from autotune.kernels.primitives.gated import PLAIN
from autotune.kernels.primitives.known import Gemm, known


@triton.jit
def multiply_arrived(
    late, c, experts, tokens, inbox, plan, group_m, before, epoch, peers, OWN_FIRST: tl.constexpr,
    EXPERTS: tl.constexpr, PER: tl.constexpr, MOVES: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """The tiles of C, for a plan that is there; none if it is ``late``. Programs ``before`` these do something else."""
    T, H = tokens.T, tokens.H
    offsets, own_rows = plan.offsets, plan.own_rows
    slot = (epoch & 1).to(tl.int32)
    tiles_n = tl.cdiv(experts.columns, FORM.BLOCK_N)
    blocks = grouped.row_blocks(offsets, EXPERTS, FORM.BLOCK_M)
    own_blocks = grouped.own_row_blocks(offsets, own_rows, EXPERTS, FORM.BLOCK_M) if OWN_FIRST else blocks
    part, parts = tl.program_id(0) - before, tl.num_programs(0) - before
    for tile in range(part, tl.max(blocks, axis=0) * tiles_n * (1 - late), parts):
        if OWN_FIRST:
            expert, row, end, n = grouped.own_first_tile(
                tile, blocks, own_blocks, offsets, own_rows, tiles_n, group_m, FORM.BLOCK_M
            )
        else:
            expert, row, end, n = grouped.expert_tile(tile, blocks, offsets, tiles_n, group_m, FORM.BLOCK_M)
        # Behind a wait that timed out the plan may be anything.
        token = grouped.rows_of(plan.pairs, row, end, PER, FORM.BLOCK_M).to(tl.int32)
        token = tl.minimum(tl.maximum(token, 0), MOVES.WORLD * T - 1)
        ours = token // T == peers.rank
        theirs = token // T != peers.rank
        late = wait_for_tokens(inbox.arrivals, token, theirs, T, MOVES.SPLIT, epoch, peers, MOVES.WORLD, MOVES.TOKENS)
        here = (token % T).to(tl.int64)
        there = slot.to(tl.int64) * MOVES.WORLD * T + token + late
        scales = None
        if FORM.SCALES:
            per_row = grouped.scales_per_row(H, FORM.SCALES)
            scales = places_of(ours, tokens.scales, here * per_row, inbox.scales, there * per_row)
        # Whole vectors of 16 bytes, which Triton 3.9 no longer sees: it would load single elements, and wait for each.
        rows = tl.multiple_of(places_of(ours, tokens.x, here * H, inbox.data, there * H), 16)
        acc = grouped.expert_product(rows, row, scales, experts, expert, n * FORM.BLOCK_N, FORM)
        grouped.store_expert_tile(acc, c, row, end, n * FORM.BLOCK_N, experts.columns, FORM)


@triton.jit(do_not_specialize=["T", "rank", "spin_limit", "group_m"])
def dispatch_gemm_kernel(
    x, ids, gates, b, c, scale_x, scale_b, bias, offsets, pairs, row_gates, own_rows, routed, routings, inbox,
    scale_inbox, arrivals, planned, done, T, H, K, N, local, capacity, routing_parts, comm_programs, stride_be,
    stride_bk, stride_bn, group_m, rank, heap_bases, epoch_counter, status, spin_limit,
    WORLD: tl.constexpr, PULL: tl.constexpr, LL: tl.constexpr, ROUTING_LL: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr, OWN_FIRST: tl.constexpr,
    EXPERTS: tl.constexpr, PER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, HALVES: tl.constexpr, EVEN_K: tl.constexpr, SWAP: tl.constexpr,
    SCALES: tl.constexpr, PROMOTE: tl.constexpr, PARTS: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """C [capacity, N], or half as many columns: tokens x [T, H] of all ranks by this rank's experts, each row times its
    expert's B [EXPERTS, H, N], + bias [EXPERTS, N] (or None), with their plan. Of fp8 both have scales.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    tokens = Tokens(x, ids, gates, T, H, K, local, scale_x, grouped.scales_per_row(H, SCALES))
    routing = Routing(routed, routings, routing_parts, T * K)
    box = Inbox(inbox, arrivals, done, scale_inbox)
    plan = Plan(offsets, pairs, row_gates, own_rows, local, capacity)
    MOVES: tl.constexpr = known(Moves, WORLD, STEP, ROUTING_LL, LL, PULL, TOKENS, COLUMNS, SPLIT, CHOICES)
    experts = grouped.Experts(b, H, N, stride_be, stride_bk, stride_bn, scale_b, bias)
    FORM: tl.constexpr = known(
        Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, SCALES, PROMOTE, EPILOGUE, HALVES, SWAP, PARTS
    )
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    first_tile = routing_parts + comm_programs + local
    if pid < first_tile:
        exchange_and_plan(pid, tokens, routing, box, plan, planned, comm_programs, epoch, peers, MOVES)
    else:
        late = wait_in_slot(planned + (epoch & 1).to(tl.int32), epoch, local, peers)
        multiply_arrived(
            late, c, experts, tokens, box, plan, group_m, first_tile, epoch, peers, OWN_FIRST, EXPERTS, PER, MOVES, FORM
        )
    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    if finish(epoch_counter, programs):
        if PULL:  # until peers have read what they read from us
            wait_for_all(done, (epoch + 1) * comm_programs, peers, WORLD)
    heap.clear_if(in_vain, offsets, local + 1)
    heap.seal_if(in_vain, c, tl.cast(capacity, tl.int64) * (N if EPILOGUE == PLAIN else N // 2))
