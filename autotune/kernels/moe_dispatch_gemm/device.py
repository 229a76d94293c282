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
from autotune.kernels.moe.arrivals import exchange_and_plan, finish_exchange, wait_for_plan
from autotune.kernels.moe.grouped_gemm import (
    expert_product,
    expert_tile,
    own_first_tile,
    own_row_blocks,
    row_blocks,
    rows_of,
    scales_per_row,
    store_expert_tile,
)
from autotune.kernels.moe.tokens import places_of, wait_for_tokens
from autotune.kernels.primitives.counters import wide_epoch
from autotune.kernels.primitives.gated import PLAIN


@triton.jit
def multiply_arrived(
    late, x, inbox, scale_x, scale_inbox, arrivals, pairs, own_rows, offsets, b, scale_b, c, T, H, N, stride_be,
    stride_bk, stride_bn, group_m, epoch, part, parts, rank, status, spin_limit, WORLD: tl.constexpr,
    TOKENS: tl.constexpr, SPLIT: tl.constexpr, OWN_FIRST: tl.constexpr, EXPERTS: tl.constexpr, PER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    HALVES: tl.constexpr, EVEN_K: tl.constexpr, SWAP: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr,
    PARTS: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """This part of ``parts`` of the tiles of C, for a plan that is there; none if it is ``late``."""
    slot = (epoch & 1).to(tl.int32)
    tiles_n = tl.cdiv(N, BLOCK_N)
    blocks = row_blocks(offsets, EXPERTS, BLOCK_M)
    own_blocks = own_row_blocks(offsets, own_rows, EXPERTS, BLOCK_M) if OWN_FIRST else blocks
    for tile in range(part, tl.max(blocks, axis=0) * tiles_n * (1 - late), parts):
        if OWN_FIRST:
            expert, row, end, n = own_first_tile(
                tile, blocks, own_blocks, offsets, own_rows, tiles_n, group_m, BLOCK_M
            )  # fmt: skip
        else:
            expert, row, end, n = expert_tile(tile, blocks, offsets, tiles_n, group_m, BLOCK_M)
        # Behind a wait that timed out the plan may be anything.
        token = tl.minimum(tl.maximum(rows_of(pairs, row, end, PER, BLOCK_M).to(tl.int32), 0), WORLD * T - 1)
        ours = token // T == rank
        late = wait_for_tokens(
            arrivals, token, token // T != rank, T, SPLIT, epoch, status, spin_limit, WORLD, TOKENS
        )  # fmt: skip
        here = (token % T).to(tl.int64)
        there = slot.to(tl.int64) * WORLD * T + token + late
        scales = None
        if SCALES:
            per_row = scales_per_row(H, SCALES)
            scales = places_of(ours, scale_x, here * per_row, scale_inbox, there * per_row)
        # Whole vectors of 16 bytes, which Triton 3.9 no longer sees: it would load single elements, and wait for each.
        rows = tl.multiple_of(places_of(ours, x, here * H, inbox, there * H), 16)
        acc = expert_product(
            rows, row, H, b, expert, n * BLOCK_N, N, stride_be, stride_bk, stride_bn, scales,
            scale_b, BLOCK_M, BLOCK_N, BLOCK_K, False, TMA, B_TRANSPOSED, HALVES, EVEN_K, SWAP, SCALES, PROMOTE, PARTS,
        )  # fmt: skip
        store_expert_tile(acc, c, row, end, n * BLOCK_N, N, BLOCK_M, BLOCK_N, EPILOGUE, HALVES)


@triton.jit(do_not_specialize=["T", "rank", "spin_limit", "group_m"])
def dispatch_gemm_kernel(
    x, ids, gates, b, c, scale_x, scale_b, offsets, pairs, row_gates, own_rows, routed, routings, inbox, scale_inbox,
    arrivals, planned, done, T, H, K, N, local, capacity, routing_parts, comm_programs, stride_be, stride_bk,
    stride_bn, group_m, rank, heap_bases, epoch_counter, status, spin_limit,
    WORLD: tl.constexpr, PULL: tl.constexpr, LL: tl.constexpr, ROUTING_LL: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr, OWN_FIRST: tl.constexpr,
    EXPERTS: tl.constexpr, PER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, HALVES: tl.constexpr, EVEN_K: tl.constexpr, SWAP: tl.constexpr,
    SCALES: tl.constexpr, PROMOTE: tl.constexpr, PARTS: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """C [capacity, N], or half as many columns: tokens x [T, H] of all ranks by this rank's experts, each row times its
    expert's B [EXPERTS, H, N], with their plan. Of fp8 both have scales.
    """
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = wide_epoch(epoch_counter)
    first_tile = routing_parts + comm_programs + local
    if pid < first_tile:
        exchange_and_plan(
            pid, x, ids, gates, offsets, pairs, row_gates, own_rows, routed, routings, inbox, arrivals, planned, done,
            T, H, K, local, capacity, routing_parts, comm_programs, epoch, rank, heap_bases, status, spin_limit,
            WORLD, PULL, LL, ROUTING_LL, STEP, TOKENS, COLUMNS, SPLIT, CHOICES, scale_x, scale_inbox,
            scales_per_row(H, SCALES),
        )  # fmt: skip
    else:
        late = wait_for_plan(planned, local, epoch, status, spin_limit)
        multiply_arrived(
            late, x, inbox, scale_x, scale_inbox, arrivals, pairs, own_rows, offsets, b, scale_b, c, T, H, N,
            stride_be, stride_bk, stride_bn, group_m, epoch, pid - first_tile, programs - first_tile, rank, status,
            spin_limit, WORLD, TOKENS, SPLIT, OWN_FIRST, EXPERTS, PER, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED,
            HALVES, EVEN_K, SWAP, SCALES, PROMOTE, PARTS, EPILOGUE,
        )  # fmt: skip
    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    finish_exchange(epoch_counter, programs, epoch, done, comm_programs, status, spin_limit, WORLD, PULL)
    heap.clear_if(in_vain, offsets, local + 1)
    heap.seal_if(in_vain, c, tl.cast(capacity, tl.int64) * (N if EPILOGUE == PLAIN else N // 2))
