"""The joint space of all-gather + GEMM, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from autotune.config import Config, Value
from autotune.dtypes import SCALE_BLOCK, WGMMA_ROWS, multiplies
from autotune.kernels.all_gather_gemm.problem import MOST_WORD_BYTES, AllGatherGemm
from autotune.kernels.gemm import two_ranks
from autotune.kernels.gemm.space import (
    default_tile,
    fits_shared_memory,
    gemm_constraints,
    gemm_dimensions,
    scales_of_chunks,
    split_constraints,
    split_dimension,
    tiles_beside_default,
    tma_aligned,
    with_fitting_tile,
)
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices, flags, numbers
from autotune.sizes import round_up
from autotune.task import Task

KERNELS = ("pull", "pull_staged", "push")
"""Modes with our own GEMM."""
STAGED = ("pull_staged", "push")
"""Modes that move units into a local buffer and signal them."""
MOVING = ("own_collective", *STAGED)
"""Modes whose programs move data."""


def _transfer_within_shard(s: Task[AllGatherGemm], transfer_rows: int) -> bool:
    return transfer_rows <= max(16, round_up(s.problem.shard[0]))


def _tma_within_shard(s: Task[AllGatherGemm], loads: str, block_k: int) -> bool:
    return loads != "tma" or s.problem.shard[1] % block_k == 0


def _halves_are_a_tile(s: Task[AllGatherGemm], loads: str) -> bool:
    return loads != "tma" or not s.problem.halves or s.problem.b_order == "nk"


def _preloads_a_tile(s: Task[AllGatherGemm], loads: str, preload_b: bool) -> bool:
    return not preload_b or _halves_are_a_tile(s, loads)


def _tile_has_a_scale(s: Task[AllGatherGemm], block_n: int) -> bool:
    return not s.problem.quantised or block_n == 2 * SCALE_BLOCK


def _rounds_to_fp8(s: Task[AllGatherGemm], mode: str) -> bool:
    return not s.problem.quantised or multiplies(s.machine.kind, s.machine.arch, s.problem.quantised_dtype)


def _gathers(s: Task[AllGatherGemm], mode: str) -> bool:
    return not s.problem.gathered


def _split_is_not_flattened(s: Task[AllGatherGemm], split_k: int, schedule: str) -> bool:
    return split_k == 1 or schedule != "flattened"


def _preload_waits(s: Task[AllGatherGemm], preload_b: bool, split_k: int, block_m: int) -> bool:
    return not preload_b or split_k > 1 or not s.problem.one_owner(block_m)


def _preload_has_a_step(s: Task[AllGatherGemm], preload_b: bool, split_k: int, block_k: int) -> bool:
    steps = -(-s.problem.k // block_k)
    return not preload_b or -(-steps // split_k) * (split_k - 1) < steps


def _preload_is_unscaled(s: Task[AllGatherGemm], preload_b: bool) -> bool:
    return not preload_b or s.problem.scales != "block"


def _preload_fits(
    s: Task[AllGatherGemm], preload_b: bool, block_m: int, block_n: int, block_k: int, num_stages: int, loads: str
) -> bool:
    # For sm_90's wgmma of 16 bits Triton 3.6 and 3.9 keep what was loaded before in a further stage, of A and B.
    wgmma = s.machine.arch == "sm_90" and s.problem.element_size == 2 and block_m >= WGMMA_ROWS
    further = preload_b and num_stages > 1 and wgmma
    return not further or fits_shared_memory(s, block_m, block_n, block_k, num_stages + 1, loads)


def _chunks_are_even(s: Task[AllGatherGemm], k_chunks: int, block_k: int) -> bool:
    if not s.problem.rows_layout and s.problem.world_size % k_chunks:
        return False
    return k_chunks == 1 or s.problem.k % (k_chunks * block_k) == 0


def _chunks_start_a_loop(s: Task[AllGatherGemm], k_chunks: int, preload_b: bool, schedule: str) -> bool:
    return k_chunks == 1 or not (preload_b or schedule == "flattened")


def _leaves_room(s: Task[AllGatherGemm], comm_programs: int) -> bool:
    return comm_programs <= s.machine.compute_units // 2


def _side_stream_resident(s: Task[AllGatherGemm], push_site: str, schedule: str) -> bool:
    return push_site != "side_stream" or (schedule != "tile" and not s.machine.is_interpreter)


def _one_after_another(s: Task[AllGatherGemm], comm_programs: int, schedule: str) -> bool:
    return not s.machine.is_interpreter or schedule == "tile" or comm_programs == 1


def _head_start_used(s: Task[AllGatherGemm], head_start: int, schedule: str, push_site: str) -> bool:
    return head_start == 0 or (schedule != "tile" and push_site == "same_launch")


def _staged_head_start_used(s: Task[AllGatherGemm], head_start: int, schedule: str) -> bool:
    return head_start == 0 or schedule != "tile"


def _pull_is_not_flattened(s: Task[AllGatherGemm], schedule: str) -> bool:
    return schedule != "flattened"


def _peers_exist(s: Task[AllGatherGemm], mode: str) -> bool:
    return int(s.problem.world_size) > 1


def _few_words(s: Task[AllGatherGemm], protocol: str) -> bool:
    return protocol == "signal" or s.problem.m * s.problem.k * s.problem.element_size <= MOST_WORD_BYTES


def _words_have_types(s: Task[AllGatherGemm], protocol: str) -> bool:
    return protocol == "signal" or (s.problem.element_size > 1 and not s.problem.gathers_scales)


def _words_to_all(s: Task[AllGatherGemm], protocol: str, peer_order: str) -> bool:
    return protocol == "signal" or peer_order == "fanout"


def _words_arrive(s: Task[AllGatherGemm], protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _pushed_to_heap(s: Task[AllGatherGemm], copies: str) -> bool:
    return copies == "pulled" or not s.problem.gathered


def _chunks_shrink(s: Task[AllGatherGemm], chunk_sizes: str, transfer_rows: int) -> bool:
    return chunk_sizes == "even" or bool(2 * transfer_rows < s.problem.shard[0])


def _copies_rows(s: Task[AllGatherGemm], mode: str) -> bool:
    return bool(s.problem.rows_layout) and s.problem.world_size > 1


def _graphs_exist(s: Task[AllGatherGemm], launch: str) -> bool:
    return launch == "eager" or not s.machine.is_interpreter


def _one_stream_on_cpu(s: Task[AllGatherGemm], gemm_streams: int) -> bool:
    return gemm_streams == 1 or not s.machine.is_interpreter


SPACE = Space(
    choices("mode", "bsp", "own_collective", "pull", "pull_staged", "push", "copy_engine",
            help="communication strategy"),
    choices("launch", "eager", "graph", modes=("bsp",), help="library calls one by one, or as a CUDA graph"),
    *gemm_dimensions(KERNELS),
    split_dimension(STAGED),
    flags("preload_b", modes=STAGED, help="load the first step of B before waiting for A"),
    choices("schedule", "tile", "persistent", "flattened", modes=KERNELS,
            help="one program per tile; persistent; persistent with tile and k loops flattened into one"),
    numbers("transfer_rows", 16, 32, 64, 128, 256, 512, 1024, 2048, modes=(*STAGED, "copy_engine"),
            help="transfer granularity: rows of a shard that one signal covers"),
    numbers("k_chunks", 1, 2, 4, 8, 16, modes=STAGED,
            help="ranges of K that are sent and awaited one after the other"),
    numbers("comm_programs", 1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64, modes=MOVING, help="programs that move data"),
    numbers("copy_kib", 2, 4, 8, 16, 32, modes=MOVING, help="KiB that a communicating program moves per step"),
    choices("peer_order", "rotate", "fanout", modes=MOVING, help="one peer after the other, or all at each step"),
    choices("protocol", "signal", "sentinel", modes=("own_collective",),
            help="A, then a signal; or sentinel words: A alone, polled until it is there"),
    choices("push_site", "same_launch", "same_stream", "side_stream", modes=("push",),
            help="place of the push: in the GEMM's launch, before it, or on a stream beside it"),
    numbers("head_start", 0, 1, 2, 3, 4, 6, 8, modes=STAGED,
            help="tiles the GEMM programs take before the communicating programs join them"),
    numbers("gemm_streams", 1, 2, modes=("copy_engine",), help="streams over which the chunks' GEMMs alternate"),
    choices("copies", "pulled", "pushed", modes=("copy_engine",),
            help="copies from the peers between two barriers, or to the peers, with a signal for each chunk"),
    choices("chunk_sizes", "even", "shrinking", modes=("copy_engine",),
            help="chunks of transfer_rows; or the last shard in halves of what is left, the others whole"),
    constraints=(
        *gemm_constraints(),
        *split_constraints(),
        Constraint("TMA within a shard", ("loads", "block_k"), _tma_within_shard,
                   "a direct pull's step must not cross into the next shard: block_k must divide the shard's columns",
                   modes=("pull",)),
        Constraint("TMA of both halves", ("loads",), _halves_are_a_tile,
                   "gate and up in halves arrive as one tile only if B is stored transposed, b_order=nk",
                   modes=("pull",)),
        Constraint("TMA of both halves", ("loads", "preload_b"), _preloads_a_tile,
                   "gate and up in halves are preloaded as one tile, which they are only if B is stored transposed, "
                   "b_order=nk"),
        Constraint("transfer within the shard", ("transfer_rows",), _transfer_within_shard,
                   "a transfer may exceed the shard's rows only by rounding up to a power of two"),
        Constraint("room for the GEMM", ("comm_programs",), _leaves_room,
                   "at most half of the compute units may communicate"),
        Constraint("residency", ("push_site", "schedule"), _side_stream_resident,
                   "one program per tile could fill the GPU before the push on the side stream is resident"),
        Constraint("sequential programs", ("comm_programs", "schedule"), _one_after_another,
                   "the interpreter runs programs one by one: a program that waits before others have pushed hangs"),
        Constraint("head start without effect", ("head_start", "schedule", "push_site"), _head_start_used,
                   "only communicating programs in a persistent GEMM's own launch can join it later", modes=("push",)),
        Constraint("head start without effect", ("head_start", "schedule"), _staged_head_start_used,
                   "only a persistent GEMM gives a head start", modes=("pull_staged",)),
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
        Constraint("flattening", ("split_k", "schedule"), _split_is_not_flattened,
                   "the programs of a split tile join at its end, so its loop cannot run on into the next tile"),
        Constraint("flattening", ("schedule",), _pull_is_not_flattened,
                   "the direct pull has no flattened form", modes=("pull",)),
        Constraint("scales of C", ("block_n",), _tile_has_a_scale,
                   "a row of a tile has one scale, for 128 columns of C: 256 of gate and up, so block_n=256"),
        Constraint("scales of C", ("mode",), _rounds_to_fp8,
                   "not an fp8 of this machine: sm_90 and later and gfx950 have fp8, gfx942 has fp8_fnuz"),
        Constraint("a gathered A", ("mode",), _gathers,
                   "the direct pull loads A tile by tile: there is no gathered A to return", modes=("pull",)),
        Constraint("few words", ("protocol",), _few_words,
                   "sentinel words are for a gathered A of at most 8 MiB: they take three times its size"),
        Constraint("words of two bytes or four", ("protocol",), _words_have_types,
                   "sentinel words have 16 or 32 bits, and cannot carry scales per row or block"),
        Constraint("words to all", ("protocol", "peer_order"), _words_to_all,
                   "sentinel words go to all peers at each step: fanout"),
        Constraint("words arrive", ("protocol",), _words_arrive,
                   "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running"),
        Constraint("parts of peers", ("mode",), _peers_exist, "a single rank has nothing to exchange",
                   modes=("own_collective",)),
        Constraint("copies to a result", ("copies",), _pushed_to_heap,
                   "peers push into the inbox on the heap, but the gathered A is the caller's own tensor"),
        Constraint("chunks that shrink", ("chunk_sizes", "transfer_rows"), _chunks_shrink,
                   "a shard of at most two transfers has no chunks to shrink"),
        Constraint("copies by rows", ("mode",), _copies_rows,
                   "chunks of C are independent only in rows layout, and a single rank has nothing to copy",
                   modes=("copy_engine",)),
        scales_of_chunks(),
        Constraint("CUDA graphs", ("launch",), _graphs_exist, "CUDA graphs need a GPU"),
        Constraint("streams", ("gemm_streams",), _one_stream_on_cpu, "streams need a GPU"),
    ),
)  # fmt: skip


PULLED = {"copies": "pulled", "chunk_sizes": "even"}
"""Plain pulls in even chunks."""

WORDS = {"peer_order": "fanout", "protocol": "sentinel"}
"""Knobs of an all-gather by sentinel words."""


MOST_ROWS_BESIDE_TILES = 256
"""From here on a tile whose rows have two owners costs more than the overlap gains: at m=1500 and 3000 the push takes
1.18 and 1.31 times as long as what is chosen instead (N=28672 K=4096, 2 H100, 2026-11-25).
"""

MOST_ROWS_GATHERED_FIRST = 2000
"""Beyond, the copy engines move A beside the library's GEMM: 1.00 against 1.20 at m=3000, 1.10 against 1.00 at 1500."""


def default_config(problem: AllGatherGemm, machine: Machine) -> Config:
    """The config used without measuring: on two ranks of sm_90 by arithmetic, elsewhere a push."""
    chosen = _by_arithmetic(problem, machine)
    found = None if chosen is None else SPACE.first_valid([chosen], problem, machine)
    return found or _push(problem, machine)


def _by_arithmetic(problem: AllGatherGemm, machine: Machine) -> Config | None:
    """Overlap where the exchange takes longer than the GEMM or the GEMM is long; else our all-gather first."""
    parts = two_ranks.parts(problem, machine)
    if parts is None or not problem.rows_layout or problem.gathered:
        return None
    if parts.gemm > parts.exchange and problem.m * problem.k * problem.element_size <= MOST_WORD_BYTES:
        programs = _at_most("comm_programs", min(32 if problem.m <= 32 else 64, machine.compute_units // 2))
        step = 2 if problem.m <= 32 else 4 if problem.m <= 64 else 8
        return Config({"mode": "own_collective", "comm_programs": programs, "copy_kib": step, **WORDS})
    tile = two_ranks.filling_tile(problem, machine, problem.m)
    if problem.m < MOST_ROWS_BESIDE_TILES or problem.one_owner(tile["block_m"]):
        return _filled_push(problem, machine, tile)
    if problem.m <= MOST_ROWS_GATHERED_FIRST:
        steps = {"comm_programs": _at_most("comm_programs", min(32, machine.compute_units // 2)), "copy_kib": 16}
        return Config({"mode": "own_collective", **steps, "peer_order": "rotate", "protocol": "signal"})
    unit = _at_most("transfer_rows", round_up(problem.shard[0]))
    return Config({"mode": "copy_engine", "transfer_rows": unit, "gemm_streams": 1, **PULLED})


def _filled_push(problem: AllGatherGemm, machine: Machine, tile: dict[str, int]) -> Config:
    """A push whose tile has a program for nearly every compute unit; more programs than units are persistent."""
    many = two_ranks.programs_of(tile, problem.m, problem.n_local) > machine.compute_units
    config = _push(problem, machine).replace(
        **tile, schedule="persistent" if many else "tile", head_start=2 if many else 0, copy_kib=16,
        comm_programs=_at_most("comm_programs", min(20, machine.compute_units // 2)),
        transfer_rows=min(512, max(16, round_up(problem.shard[0]))),
    )  # fmt: skip
    return with_fitting_tile(SPACE, config, problem, machine)


def _at_most(name: str, limit: int) -> int:
    """The largest value of a dimension up to a limit."""
    return max(int(value) for value in SPACE.dimensions[name].values if int(value) <= limit)


def _push(problem: AllGatherGemm, machine: Machine) -> Config:
    """A push in the GEMM's own launch with a tile to suit M."""
    setting = Task(problem, machine)
    tma = tma_aligned(setting, "tma") and machine.has_tma and not machine.is_interpreter
    tile = default_tile(problem, machine)
    if problem.quantised:
        tile |= {"block_n": 2 * SCALE_BLOCK, "num_stages": min(3, tile["num_stages"])}
        tile |= {"block_m": min(64, tile["block_m"])} if tile["num_warps"] == 4 else {}
        tile |= {"block_k": min(tile["block_k"], 128 // problem.element_size)}
    config: dict[str, Value] = {
        "mode": "push",
        **tile,
        "split_k": 1,
        "preload_b": False,
        "k_chunks": 1,
        "loads": "tma" if tma else "pointer",
        "schedule": "tile",
        "transfer_rows": min(256, max(16, round_up(problem.shard[0]))),
        "comm_programs": min(16, machine.compute_units // 4),
        "copy_kib": 4 if problem.m <= 64 else 8 if problem.m <= 512 else 16,
        "peer_order": "fanout" if problem.m <= 512 else "rotate",
        "push_site": "same_launch",
        "head_start": 0,
    }
    return with_fitting_tile(SPACE, Config(config), problem, machine)


def first_configs(problem: AllGatherGemm, machine: Machine) -> list[Config]:
    """The default, then a push, its tile in every mode, and with the transfer beside or around it."""
    default, push = default_config(problem, machine), _push(problem, machine)
    tile = {d.name: push[d.name] for d in SPACE.dimensions_of("pull") if d.name != "mode"}
    staged = {d.name: push[d.name] for d in SPACE.dimensions_of("pull_staged") if d.name != "mode"}
    persistent = {"schedule": "persistent", "comm_programs": 1 if machine.is_interpreter else 12, "head_start": 2}
    tiles = tiles_beside_default(problem, machine)
    gathering = {name: push[name] for name in ("copy_kib", "peer_order")}
    rows, most = problem.shard[0], min(32, machine.compute_units // 4)
    unit = max((v for v in SPACE.dimensions["transfer_rows"].values if int(v) <= rows), default=16)
    found = [
        default,
        push,
        *(push.replace(**each) for each in tiles),
        *(push.replace(**{**each, **persistent, "schedule": "flattened"}) for each in tiles),
        *_streaming(push, machine),
        *(push.replace(k_chunks=chunks) for chunks in (4, 8)),
        push.replace(**persistent),
        push.replace(schedule="persistent", push_site="side_stream"),
        push.replace(loads="pointer"),
        Config({"mode": "own_collective", "comm_programs": most, **gathering, "protocol": "signal"}),
        Config({"mode": "own_collective", "comm_programs": most, "copy_kib": 2, **WORDS}),
        Config({"mode": "copy_engine", "transfer_rows": unit, "gemm_streams": 1, **PULLED}),
        Config({"mode": "copy_engine", "transfer_rows": unit, "gemm_streams": 1, **PULLED, "copies": "pushed"}),
        Config({"mode": "pull_staged", **staged}),
        Config({"mode": "pull", **tile}),
        Config({"mode": "pull", **tile, "loads": "pointer"}),
    ]
    return list(SPACE.valid(found, problem, machine))


def _streaming(push: Config, machine: Machine) -> list[Config]:
    """Configs for few rows: deep steps of B and many splits, all of them loading before A has arrived."""
    deep = push.replace(
        block_n=64, block_k=512, split_k=16, preload_b=True, num_stages=1, num_warps=8, loads="pointer",
        comm_programs=min(8, machine.compute_units // 4), copy_kib=2,
    )  # fmt: skip
    # A preload may take a stage more, see _preload_fits: of 48 KiB a fifth one does not fit.
    rows = push.integer("block_m")
    return [
        deep,
        deep.replace(block_k=256, comm_programs=4),
        deep.replace(block_k=128, split_k=8, num_stages=4 if rows < 128 else 3, num_warps=4),
        deep.replace(block_n=32, num_warps=4),
        deep.replace(block_n=128, block_k=128, split_k=4, num_stages=4 if rows < WGMMA_ROWS else 3),
    ]
