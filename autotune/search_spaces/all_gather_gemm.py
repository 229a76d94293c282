"""The joint space of all-gather + GEMM, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from autotune.config import Config, Value
from autotune.environment import Machine
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.search_spaces import Constraint, Setting, Space, choices, numbers

KERNELS = ("pull", "pull_staged", "push")
"""Modes whose GEMM is ours."""
MOST_SPLIT_PROGRAMS = 8
"""Programs for each compute unit up to which a tile's depth may be split: beyond, their joining costs more."""

STAGED = ("pull_staged", "push")
"""Modes that move units into a local buffer and signal them."""


def _round_up(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def _operand_bytes(s: Setting, block_m: int, block_n: int, block_k: int) -> int:
    return (block_m + block_n) * block_k * int(s.problem.element_size)


def _fits_shared_memory(s: Setting, block_m: int, block_n: int, block_k: int, num_stages: int, loads: str) -> bool:
    # On AMD loads are held in registers on the way: one stage less in the LDS.
    stages = num_stages if s.machine.kind != "hip" else max(1, num_stages - 1)
    output = block_m * min(block_n, max(32, block_n // 2)) * int(s.problem.element_size) if loads == "tma" else 0
    return stages * _operand_bytes(s, block_m, block_n, block_k) + output <= s.machine.shared_memory


def _fits_registers(s: Setting, block_m: int, block_n: int, num_warps: int) -> bool:
    return block_m * block_n <= 128 * 32 * num_warps


def _feeds_every_warp(s: Setting, block_m: int, block_n: int, num_warps: int) -> bool:
    return block_m * block_n >= 128 * num_warps


def _no_larger_than_problem(s: Setting, block_m: int, block_n: int, block_k: int) -> bool:
    return (
        block_m <= max(16, _round_up(s.problem.m))
        and block_n <= max(32, _round_up(s.problem.n_local))
        and block_k <= max(32, _round_up(s.problem.shard[1]))
    )


def _unit_within_shard(s: Setting, unit_rows: int) -> bool:
    return unit_rows <= max(16, _round_up(s.problem.shard[0]))


def _tma_available(s: Setting, loads: str) -> bool:
    return loads != "tma" or s.machine.has_tma


def _tma_aligned(s: Setting, loads: str) -> bool:
    sizes = (s.problem.k, s.problem.n_local, s.problem.shard[1])
    return loads != "tma" or all(size * s.problem.element_size % 16 == 0 for size in sizes)


def _tma_within_shard(s: Setting, loads: str, block_k: int) -> bool:
    return loads != "tma" or s.problem.shard[1] % block_k == 0


def _split_is_deep(s: Setting, split_k: int, block_k: int) -> bool:
    return (split_k - 1) * block_k < s.problem.k


def _split_is_needed(s: Setting, split_k: int, block_m: int, block_n: int) -> bool:
    tiles = -(-s.problem.m // block_m) * -(-s.problem.n_local // block_n)
    return split_k == 1 or tiles * split_k <= MOST_SPLIT_PROGRAMS * s.machine.compute_units


def _split_is_not_flattened(s: Setting, split_k: int, schedule: str) -> bool:
    return split_k == 1 or schedule != "flattened"


def _leaves_room(s: Setting, comm_programs: int) -> bool:
    return comm_programs <= s.machine.compute_units // 2


def _side_stream_resident(s: Setting, push_site: str, schedule: str) -> bool:
    return push_site != "side_stream" or (schedule != "tile" and not s.machine.is_interpreter)


def _one_after_another(s: Setting, comm_programs: int, schedule: str) -> bool:
    return not s.machine.is_interpreter or schedule == "tile" or comm_programs == 1


def _head_start_used(s: Setting, head_start: int, schedule: str, push_site: str) -> bool:
    return head_start == 0 or (schedule != "tile" and push_site == "same_launch")


def _staged_head_start_used(s: Setting, head_start: int, schedule: str) -> bool:
    return head_start == 0 or schedule != "tile"


def _pull_is_not_flattened(s: Setting, schedule: str) -> bool:
    return schedule != "flattened"


def _copies_rows(s: Setting, mode: str) -> bool:
    return bool(s.problem.rows_layout) and s.problem.world_size > 1


def _graphs_exist(s: Setting, launch: str) -> bool:
    return launch == "eager" or not s.machine.is_interpreter


def _one_stream_on_cpu(s: Setting, gemm_streams: int) -> bool:
    return gemm_streams == 1 or not s.machine.is_interpreter


SPACE = Space(
    choices("mode", "bsp", "pull", "pull_staged", "push", "copy_engine", help="communication strategy"),
    choices("launch", "eager", "graph", modes=("bsp",), help="library calls one by one, or as a CUDA graph"),
    numbers("block_m", 16, 32, 64, 128, 256, modes=KERNELS, help="rows of an output tile"),
    numbers("block_n", 32, 64, 128, 256, modes=KERNELS, help="columns of an output tile"),
    numbers("block_k", 32, 64, 128, modes=KERNELS, help="depth of one step of the dot product"),
    numbers("split_k", 1, 2, 4, 8, 16, modes=STAGED, help="programs that share the depth of a tile"),
    numbers("group_m", 1, 2, 4, 8, 16, modes=KERNELS, help="rows of tiles walked together, for the L2"),
    numbers("num_warps", 4, 8, modes=KERNELS, help="warps of a GEMM program"),
    numbers("num_stages", 1, 2, 3, 4, 5, 6, modes=KERNELS, help="depth of the software pipeline"),
    choices("loads", "pointer", "tma", modes=KERNELS, help="how operands are loaded and the result stored"),
    choices("schedule", "tile", "persistent", "flattened", modes=KERNELS,
            help="one program a tile; persistent; persistent with tile and k loops made one"),
    numbers("unit_rows", 16, 32, 64, 128, 256, 512, 1024, 2048, modes=(*STAGED, "copy_engine"),
            help="transfer granularity: rows of a shard that one signal covers"),
    numbers("comm_programs", 1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64, modes=STAGED, help="programs that move data"),
    numbers("copy_kib", 2, 4, 8, 16, 32, modes=STAGED, help="KiB that a communicating program moves at a step"),
    choices("peer_order", "rotate", "fanout", modes=STAGED, help="one peer after the other, or all at each step"),
    choices("push_site", "same_launch", "same_stream", "side_stream", modes=("push",),
            help="where the push runs: in the GEMM's launch, before it, or beside it"),
    numbers("head_start", 0, 1, 2, 3, 4, 6, 8, modes=STAGED,
            help="turns of tiles that communicating programs leave to the others before they join in"),
    numbers("gemm_streams", 1, 2, modes=("copy_engine",), help="streams over which the chunks' GEMMs alternate"),
    constraints=(
        Constraint("no larger than the problem", ("block_m", "block_n", "block_k"), _no_larger_than_problem,
                   "a tile may exceed the problem only by rounding up to the next power of two"),
        Constraint("registers", ("block_m", "block_n", "num_warps"), _fits_registers,
                   "the fp32 accumulator would need more than 128 registers of each thread"),
        Constraint("a warp's share", ("block_m", "block_n", "num_warps"), _feeds_every_warp,
                   "a warp would have less than 128 elements of the tile"),
        Constraint("TMA exists", ("loads",), _tma_available, "only NVIDIA GPUs from sm_90 have TMA"),
        Constraint("TMA alignment", ("loads",), _tma_aligned, "TMA needs rows of 16-byte multiples"),
        Constraint("TMA within a shard", ("loads", "block_k"), _tma_within_shard,
                   "a direct pull's step must not cross into the next shard's columns: block_k must divide them",
                   modes=("pull",)),
        Constraint("shared memory", ("block_m", "block_n", "block_k", "num_stages", "loads"), _fits_shared_memory,
                   "the pipeline's stages would not fit into the shared memory of one program"),
        Constraint("unit within the shard", ("unit_rows",), _unit_within_shard,
                   "a unit may exceed the shard's rows only by rounding up to the next power of two"),
        Constraint("room for the GEMM", ("comm_programs",), _leaves_room,
                   "at most half of the compute units may communicate"),
        Constraint("residency", ("push_site", "schedule"), _side_stream_resident,
                   "a GEMM of one program a tile could fill the GPU before the push on the side stream is resident"),
        Constraint("sequential programs", ("comm_programs", "schedule"), _one_after_another,
                   "the interpreter runs programs one after another: one that waits before others have pushed hangs"),
        Constraint("head start without effect", ("head_start", "schedule", "push_site"), _head_start_used,
                   "only communicating programs of a persistent GEMM's own launch can join in later", modes=("push",)),
        Constraint("head start without effect", ("head_start", "schedule"), _staged_head_start_used,
                   "only a persistent GEMM has turns", modes=("pull_staged",)),
        Constraint("depth of a split", ("split_k", "block_k"), _split_is_deep,
                   "each split needs a step of block_k at least"),
        Constraint("splits needed", ("split_k", "block_m", "block_n"), _split_is_needed,
                   "there are programs enough for every compute unit without so many splits"),
        Constraint("flattening", ("split_k", "schedule"), _split_is_not_flattened,
                   "a split tile ends in a meeting of its programs, not in the next tile's loop"),
        Constraint("flattening", ("schedule",), _pull_is_not_flattened,
                   "the direct pull has no flattened form", modes=("pull",)),
        Constraint("copies by rows", ("mode",), _copies_rows,
                   "chunks of C are independent only in rows layout, and one rank has nothing to copy",
                   modes=("copy_engine",)),
        Constraint("CUDA graphs", ("launch",), _graphs_exist, "there are no CUDA graphs without a GPU"),
        Constraint("streams", ("gemm_streams",), _one_stream_on_cpu, "there are no streams without a GPU"),
    ),
)  # fmt: skip


def default_config(problem: AllGatherGemm, machine: Machine) -> Config:
    """A push in the GEMM's own launch with a tile to suit M: what one would write down without measuring."""
    tma = machine.has_tma and not machine.is_interpreter and _tma_aligned(Setting(problem, machine), "tma")
    tile = _default_tile(problem, machine)
    config: dict[str, Value] = {
        "mode": "push",
        **tile,
        "split_k": 1,
        "loads": "tma" if tma else "pointer",
        "schedule": "tile",
        "unit_rows": min(256, max(16, _round_up(problem.shard[0]))),
        "comm_programs": min(16, machine.compute_units // 4),
        "copy_kib": 4 if problem.m <= 64 else 8 if problem.m <= 512 else 16,
        "peer_order": "fanout" if problem.m <= 512 else "rotate",
        "push_site": "same_launch",
        "head_start": 0,
    }
    found = Config(config)
    while SPACE.violation(found, problem, machine) is not None and found.integer("block_n") > 32:
        # fp32 and odd shapes: a smaller tile fits where the usual one does not.
        stages = max(2, found.integer("num_stages") - 1)
        found = found.replace(
            block_n=found.integer("block_n") // 2, block_k=min(64, tile["block_k"]), num_stages=stages
        )
    return found


def _default_tile(problem: AllGatherGemm, machine: Machine) -> dict[str, int]:
    """The GEMM's part of the default: small M reads B as fast as it can, large M computes."""
    rows = max(16, _round_up(problem.m))
    if machine.is_interpreter:
        names = {"block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2}
    elif problem.m <= 64:
        stages = 6 if machine.kind == "cuda" else 2
        names = {"block_m": rows, "block_n": 64, "block_k": 128, "group_m": 4, "num_warps": 4, "num_stages": stages}
    elif problem.m <= 512 or machine.kind == "hip":
        stages = 4 if machine.kind == "cuda" else 2
        names = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 4, "num_warps": 8, "num_stages": stages}
    else:
        names = {"block_m": 128, "block_n": 256, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 4}
    names["block_n"] = min(names["block_n"], max(32, _round_up(problem.n_local)))
    names["block_k"] = min(names["block_k"], max(32, _round_up(problem.shard[1])))
    return names
