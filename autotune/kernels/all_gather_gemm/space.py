"""The constraints of all-gather + GEMM: each mode's, and those of all modes."""

from __future__ import annotations

import math
from typing import Any

from autotune.dtypes import SCALE_BLOCK, WGMMA_ROWS, multiplies
from autotune.kernels.all_gather_gemm.problem import MOST_WORD_BYTES, AllGatherGemm
from autotune.kernels.gemm.space import (
    FLATTENING,
    STREAMS,
    fits_shared_memory,
    operands_constraint,
    scales_of_chunks,
    split_constraints,
    tile_constraints,
)
from autotune.kernels.gemm.specialized import specialized_constraints
from autotune.search_spaces import Constraint
from autotune.sizes import round_up
from autotune.task import Task

GatherTask = Task[AllGatherGemm]

TAIL_PARTS, LEAST_STEPS = (4, 2), 4
"""Parts of K of a tile that full rounds leave over, and how many steps each has at least."""

MOST_ROWS_ACROSS = 1024
"""Places in a shard are 32 bits wide there."""


def _transfer_within_shard(s: GatherTask, transfer_rows: int) -> bool:
    return transfer_rows <= max(16, round_up(s.problem.shard[0]))


def _leaves_room(s: GatherTask, comm_programs: int) -> bool:
    return comm_programs <= s.machine.compute_units // 2


def _few_words(s: GatherTask, protocol: str) -> bool:
    return protocol == "signal" or s.problem.m * s.problem.k * s.problem.element_size <= MOST_WORD_BYTES


def _words_have_types(s: GatherTask, protocol: str) -> bool:
    return protocol == "signal" or (s.problem.element_size > 1 and not s.problem.gathers_scales)


def _words_to_all(s: GatherTask, protocol: str, peer_order: str) -> bool:
    return protocol == "signal" or peer_order == "fanout"


def _words_arrive(s: GatherTask, protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _peers_exist(s: GatherTask, mode: str) -> bool:
    return s.problem.world_size > 1


def _tile_has_a_scale(s: GatherTask, block_n: int) -> bool:
    return not s.problem.quantised or block_n == 2 * SCALE_BLOCK


def _tma_within_shard(s: GatherTask, loads: str, block_k: int) -> bool:
    return loads == "pointer" or s.problem.shard[1] % block_k == 0


def _pull_loads_by_all_warps(s: GatherTask, loads: str) -> bool:
    return loads != "specialized"


def _halves_are_a_tile(s: GatherTask, loads: str) -> bool:
    return loads == "pointer" or not s.problem.halves or s.problem.b_order == "nk"


def _pull_is_not_flattened(s: GatherTask, schedule: str) -> bool:
    return schedule != "flattened"


def _gathers(s: GatherTask, mode: str) -> bool:
    return not s.problem.gathered


def _preloads_a_tile(s: GatherTask, loads: str, preload_b: bool) -> bool:
    return not preload_b or _halves_are_a_tile(s, loads)


def _one_after_another(s: GatherTask, comm_programs: int, schedule: str) -> bool:
    return not s.machine.is_interpreter or schedule == "tile" or comm_programs == 1


def _chunks_are_even(s: GatherTask, k_chunks: int, block_k: int) -> bool:
    if not s.problem.rows_layout and s.problem.world_size % k_chunks:
        return False
    return k_chunks == 1 or s.problem.k % (k_chunks * block_k) == 0


def _chunks_start_a_loop(s: GatherTask, k_chunks: int, preload_b: bool, schedule: str) -> bool:
    return k_chunks == 1 or not (preload_b or schedule == "flattened")


def _preload_waits(s: GatherTask, preload_b: bool, split_k: int, block_m: int) -> bool:
    return not preload_b or not s.problem.tiled_by_shard(block_m, split_k)


def _preload_has_a_step(s: GatherTask, preload_b: bool, split_k: int, block_k: int) -> bool:
    steps = -(-s.problem.k // block_k)
    return not preload_b or -(-steps // split_k) * (split_k - 1) < steps


def _preload_is_unscaled(s: GatherTask, preload_b: bool) -> bool:
    return not preload_b or s.problem.scales != "block"


def _preload_fits(
    s: GatherTask, preload_b: bool, block_m: int, block_n: int, block_k: int, num_stages: int, loads: str
) -> bool:
    # For sm_90's wgmma of 16 bits Triton 3.6 and 3.9 keep what was loaded before in a further stage, of A and B.
    wgmma = s.machine.arch == "sm_90" and s.problem.element_size == 2 and block_m >= WGMMA_ROWS
    further = preload_b and num_stages > 1 and wgmma
    return not further or fits_shared_memory(s, block_m, block_n, block_k, num_stages + 1, loads)


def _staged_head_start_used(s: GatherTask, head_start: int, schedule: str) -> bool:
    return head_start == 0 or schedule != "tile"


def _side_stream_resident(s: GatherTask, push_site: str, schedule: str) -> bool:
    return push_site != "side_stream" or (schedule != "tile" and not s.machine.is_interpreter)


def _head_start_used(s: GatherTask, head_start: int, schedule: str, push_site: str) -> bool:
    return head_start == 0 or (schedule != "tile" and push_site == "same_launch")


def _pushed_to_heap(s: GatherTask, copies: str) -> bool:
    return copies == "pulled" or not s.problem.gathered


def _chunks_shrink(s: GatherTask, chunk_sizes: str, transfer_rows: int) -> bool:
    return chunk_sizes == "even" or 2 * transfer_rows < s.problem.shard[0]


def _copies_rows(s: GatherTask, mode: str) -> bool:
    return s.problem.rows_layout and s.problem.world_size > 1


def _specialized_gather(s: GatherTask, mode: str) -> bool:
    p = s.problem
    return p.rows_layout and not (p.gathered or p.quantised) and p.world_size > 1


def _whole_tiles(s: GatherTask, block_m: int, across_shards: int) -> bool:
    return across_shards > 0 or s.problem.shard[0] >= block_m


def _tiles_across(s: GatherTask, across_shards: int, transfer_rows: int, block_m: int) -> bool:
    problem = s.problem
    few = WGMMA_ROWS < problem.m <= MOST_ROWS_ACROSS and block_m <= round_up(problem.m)
    return not across_shards or (few and transfer_rows >= problem.shard[0])


def tail_of(task: GatherTask, block_m: int, block_n: int) -> int:
    """Tiles of one shard's rows that are left over by full rounds, which have a tile for each compute unit."""
    problem = task.problem
    own = math.ceil(problem.shard[0] / block_m) * math.ceil(problem.n_local / block_n)
    return problem.world_size * own % task.machine.compute_units


def tail_parts(task: GatherTask, mode: Any) -> int:
    """Parts of K of a tile left over: as many as find units, and steps; 1 unless ``split_tail``."""
    tail, steps = tail_of(task, mode.block_m, mode.block_n), task.problem.k // mode.block_k
    fitting = (each for each in TAIL_PARTS if tail * each <= task.machine.compute_units and steps >= each * LEAST_STEPS)
    return next(fitting, 1) if tail and mode.split_tail else 1


def _tail_has_owners(s: GatherTask, split_tail: bool, across_shards: int) -> bool:
    return not (split_tail and across_shards)


def _chunks_across_are_even(s: GatherTask, across_shards: int, block_k: int) -> bool:
    return across_shards <= 1 or _chunks_are_even(s, across_shards, block_k)


def _rounds_to_fp8(s: GatherTask, mode: str) -> bool:
    return not s.problem.quantised or multiplies(s.machine.kind, s.machine.arch, s.problem.quantised_dtype)


TRANSFER = Constraint("transfer within the shard", ("transfer_rows",), _transfer_within_shard,
                      "a transfer may exceed the shard's rows only by rounding up to a power of two")  # fmt: skip
ROOM = Constraint("room for the GEMM", ("comm_programs",), _leaves_room,
                  "at most half of the compute units may communicate")  # fmt: skip
TILE_SCALE = Constraint(
    "scales of C", ("block_n",), _tile_has_a_scale,
    "a row of a tile has one scale, for 128 columns of C: 256 of gate and up, so block_n=256",
)  # fmt: skip

SHARED = (
    operands_constraint(),
    Constraint("scales of C", ("mode",), _rounds_to_fp8,
               "not an fp8 of this machine: sm_89 and later and gfx950 have fp8, gfx942 has fp8_fnuz"),
)  # fmt: skip
OWN_COLLECTIVE = (
    ROOM,
    Constraint("few words", ("protocol",), _few_words,
               "sentinel words are for a gathered A of at most 8 MiB: they take three times its size"),
    Constraint("words of two bytes or four", ("protocol",), _words_have_types,
               "sentinel words have 16 or 32 bits, and cannot carry scales per row or block"),
    Constraint("words to all", ("protocol", "peer_order"), _words_to_all,
               "sentinel words go to all peers at each step: fanout"),
    Constraint("words arrive", ("protocol",), _words_arrive,
               "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running"),
    Constraint("parts of peers", ("mode",), _peers_exist, "a single rank has nothing to exchange"),
)  # fmt: skip
PULL = (
    *tile_constraints(),
    Constraint("TMA within a shard", ("loads", "block_k"), _tma_within_shard,
               "a direct pull's step must not cross into the next shard: block_k must divide the shard's columns"),
    Constraint("TMA of both halves", ("loads",), _halves_are_a_tile,
               "gate and up in halves arrive as one tile only if B is stored transposed, b_order=nk"),
    Constraint("flattening", ("schedule",), _pull_is_not_flattened, "the direct pull has no flattened form"),
    Constraint("loads of A", ("loads",), _pull_loads_by_all_warps, "the direct pull loads A through pointers"),
    TILE_SCALE,
    Constraint("a gathered A", ("mode",), _gathers,
               "the direct pull loads A tile by tile: there is no gathered A to return"),
)  # fmt: skip
STAGED = (
    *tile_constraints(),
    *split_constraints(),
    Constraint("TMA of both halves", ("loads", "preload_b"), _preloads_a_tile,
               "gate and up in halves are preloaded as one tile, which they are only if B is stored transposed, "
               "b_order=nk"),
    TRANSFER,
    ROOM,
    Constraint("sequential programs", ("comm_programs", "schedule"), _one_after_another,
               "the interpreter runs programs one by one: a program that waits before others have pushed hangs"),
    Constraint("even chunks", ("k_chunks", "block_k"), _chunks_are_even,
               "a chunk must be whole steps of block_k, and in K layout whole shards, as many in each chunk"),
    Constraint("chunks and loops", ("k_chunks", "preload_b", "schedule"), _chunks_start_a_loop,
               "each chunk has its own loop, which neither preloads nor flattens"),
    Constraint("preload without effect", ("preload_b", "split_k", "block_m"), _preload_waits,
               "if tiles have one owner, programs start with their own rank's rows and need not wait"),
    Constraint("preload", ("preload_b", "split_k", "block_k"), _preload_has_a_step,
               "every split needs a first step to preload"),
    Constraint("preload", ("preload_b",), _preload_is_unscaled,
               "with scales per block a preloaded step would need its own scaling"),
    Constraint("preload", ("preload_b", "block_m", "block_n", "block_k", "num_stages", "loads"), _preload_fits,
               "the preloaded step takes a stage more, which does not fit into a program's shared memory"),
    FLATTENING,
    TILE_SCALE,
)  # fmt: skip
PULL_STAGED = (
    *STAGED,
    Constraint("head start without effect", ("head_start", "schedule"), _staged_head_start_used,
               "only a persistent GEMM gives a head start"),
)  # fmt: skip
PUSH = (
    *STAGED,
    Constraint("residency", ("push_site", "schedule"), _side_stream_resident,
               "one program per tile could fill the GPU before the push on the side stream is resident"),
    Constraint("head start without effect", ("head_start", "schedule", "push_site"), _head_start_used,
               "only communicating programs in a persistent GEMM's own launch can join it later"),
)  # fmt: skip
WARP_SPECIALIZED = (
    *specialized_constraints(),
    Constraint("a specialized gather", ("mode",), _specialized_gather,
               "warp specialization gathers A by rows, and returns neither A nor fp8"),
    Constraint("whole tiles", ("block_m", "across_shards"), _whole_tiles,
               "a shard must have as many rows as a tile, unless across_shards"),
    Constraint("tiles across shards", ("across_shards", "transfer_rows", "block_m"), _tiles_across,
               f"for m={WGMMA_ROWS + 1} to {MOST_ROWS_ACROSS}: with fewer, other modes are faster; of shards sent "
               "whole (transfer_rows), in tiles of no more rows than A's"),
    Constraint("even chunks across shards", ("across_shards", "block_k"), _chunks_across_are_even,
               "a chunk must be whole steps of block_k"),
    Constraint("a tail of one shard's tiles", ("split_tail", "across_shards"), _tail_has_owners,
               "only tiles of one shard's rows are split"),
    TRANSFER,
)  # fmt: skip
COPY_ENGINE = (
    TRANSFER,
    Constraint("copies to a result", ("copies",), _pushed_to_heap,
               "peers push into the inbox on the heap, but the gathered A is the caller's own tensor"),
    Constraint("chunks that shrink", ("chunk_sizes", "transfer_rows"), _chunks_shrink,
               "a shard of at most two transfers has no chunks to shrink"),
    Constraint("copies by rows", ("mode",), _copies_rows,
               "chunks of C are independent only in rows layout, and a single rank has nothing to copy"),
    scales_of_chunks(),
    STREAMS,
)  # fmt: skip
