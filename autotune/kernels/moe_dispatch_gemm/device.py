"""Device code of dispatch + grouped GEMM: one kernel, one launch.

Behind the exchange and the plan (``moe/arrivals.py``) come programs that walk the tiles of the grouped GEMM. A tile's
rows of A are rows of the inbox, named by the plan; its program waits for the blocks of tokens that they belong to.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.moe.arrivals import exchange_and_plan, finish_exchange, wait_for_plan
from autotune.kernels.moe.grouped_gemm import expert_product, expert_tile, row_blocks, rows_of, store_expert_tile
from autotune.kernels.moe.tokens import wait_for_tokens
from autotune.kernels.primitives.counters import wide_epoch


@triton.jit
def multiply_arrived(
    inbox, arrivals, pairs, offsets, b, c, T, H, N, stride_be, stride_bk, stride_bn, group_m, epoch, part, parts,
    status, spin_limit, WORLD: tl.constexpr, TOKENS: tl.constexpr, SPLIT: tl.constexpr, EXPERTS: tl.constexpr,
    PER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TMA: tl.constexpr,
    B_TRANSPOSED: tl.constexpr, HALVES: tl.constexpr, EVEN_K: tl.constexpr, SWAP: tl.constexpr,
    EPILOGUE: tl.constexpr,
):  # fmt: skip
    """This part of ``parts`` of the tiles of C, for a plan that is there."""
    slot = (epoch & 1).to(tl.int32)
    tiles_n = tl.cdiv(N, BLOCK_N)
    blocks = row_blocks(offsets, EXPERTS, BLOCK_M)
    for tile in range(part, tl.max(blocks, axis=0) * tiles_n, parts):
        expert, row, end, n = expert_tile(tile, blocks, offsets, tiles_n, group_m, BLOCK_M)
        token = rows_of(pairs, row, end, PER, BLOCK_M).to(tl.int32)
        late = wait_for_tokens(arrivals, token, token >= 0, T, SPLIT, epoch, status, spin_limit, WORLD, TOKENS)
        rows = slot.to(tl.int64) * WORLD * T + token + late
        acc = expert_product(
            inbox, rows, row, H, b, expert, n * BLOCK_N, N, stride_be, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K,
            False, TMA, B_TRANSPOSED, HALVES, EVEN_K, SWAP, None,
        )  # fmt: skip
        store_expert_tile(acc, c, row, end, n * BLOCK_N, N, BLOCK_M, BLOCK_N, EPILOGUE, HALVES)


@triton.jit(do_not_specialize=["T", "rank", "spin_limit", "group_m"])
def dispatch_gemm_kernel(
    x, ids, gates, b, c, offsets, pairs, row_gates, routed, routings, inbox, arrivals, planned, done,
    T, H, K, N, local, capacity, routing_parts, comm_programs, stride_be, stride_bk, stride_bn, group_m, rank,
    heap_bases, epoch_counter, status, spin_limit,
    WORLD: tl.constexpr, PULL: tl.constexpr, LL: tl.constexpr, ROUTING_LL: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr,
    EXPERTS: tl.constexpr, PER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, HALVES: tl.constexpr, EVEN_K: tl.constexpr, SWAP: tl.constexpr,
    EPILOGUE: tl.constexpr,
):  # fmt: skip
    """C [capacity, N], or half as many columns: tokens x [T, H] of all ranks by this rank's experts, each row times its
    expert's B [EXPERTS, H, N], with their plan.
    """
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = wide_epoch(epoch_counter)
    first_tile = routing_parts + comm_programs + local
    if pid < first_tile:
        exchange_and_plan(
            pid, x, ids, gates, offsets, pairs, row_gates, routed, routings, inbox, arrivals, planned, done,
            T, H, K, local, capacity, routing_parts, comm_programs, epoch, rank, heap_bases, status, spin_limit,
            WORLD, PULL, LL, ROUTING_LL, STEP, TOKENS, COLUMNS, SPLIT, CHOICES,
        )  # fmt: skip
    else:
        wait_for_plan(planned, local, epoch, status, spin_limit)
        multiply_arrived(
            inbox, arrivals, pairs, offsets, b, c, T, H, N, stride_be, stride_bk, stride_bn, group_m, epoch,
            pid - first_tile, programs - first_tile, status, spin_limit, WORLD, TOKENS, SPLIT, EXPERTS, PER,
            BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, HALVES, EVEN_K, SWAP, EPILOGUE,
        )  # fmt: skip
    finish_exchange(epoch_counter, programs, epoch, done, comm_programs, status, spin_limit, WORLD, PULL)
