"""The joint space of GEMM + reduce-scatter, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from autotune.config import Config, Value
from autotune.kernels.gemm import two_ranks
from autotune.kernels.gemm.space import (
    default_tile,
    gemm_constraints,
    gemm_dimensions,
    scales_of_chunks,
    split_constraints,
    split_dimension,
    tiles_beside_default,
    tma_aligned,
    wire_constraint,
    with_fitting_tile,
)
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.sizes import round_up
from autotune.task import Task

KERNELS = ("push", "pull")
"""Modes with our own GEMM."""

SUMMING = ("own_collective", "copy_engine")
"""Modes that end in a separate sum."""

MOST_CHUNKS = 8
"""Chunks into which ``copy_engine`` may cut an owner's rows."""


def _tile_within_rows(s: Task[GemmReduceScatter], block_m: int) -> bool:
    return block_m <= max(16, round_up(s.problem.rows))


def _transfer_within_tiles(s: Task[GemmReduceScatter], transfer_tiles: int, block_m: int, block_n: int) -> bool:
    return transfer_tiles == 1 or transfer_tiles <= -(-s.problem.rows // block_m) * -(-s.problem.n // block_n)


def _split_is_not_flattened(s: Task[GemmReduceScatter], split_k: int, schedule: str) -> bool:
    return split_k == 1 or schedule != "flattened"


def _next_turn_exists(s: Task[GemmReduceScatter], signals: str, schedule: str) -> bool:
    return signals == "at_once" or schedule == "persistent"


def _peers_to_order(s: Task[GemmReduceScatter], peer_order: str) -> bool:
    return peer_order == "rotate" or s.problem.world_size > 2


def _peers_exist(s: Task[GemmReduceScatter], mode: str) -> bool:
    return int(s.problem.world_size) > 1


def _chunk_of_sensible_size(s: Task[GemmReduceScatter], transfer_rows: int) -> bool:
    return transfer_rows <= max(16, round_up(s.problem.m)) and transfer_rows * MOST_CHUNKS >= s.problem.rows


def _graphs_exist(s: Task[GemmReduceScatter], launch: str) -> bool:
    return launch == "eager" or not s.machine.is_interpreter


def _one_stream_on_cpu(s: Task[GemmReduceScatter], gemm_streams: int) -> bool:
    return gemm_streams == 1 or not s.machine.is_interpreter


SPACE = Space(
    choices("mode", "bsp", "own_collective", "push", "pull", "copy_engine", help="communication strategy"),
    choices("launch", "eager", "graph", modes=("bsp",), help="library calls one by one, or as a CUDA graph"),
    *gemm_dimensions(KERNELS),
    split_dimension(KERNELS),
    choices("schedule", "tile", "persistent", "flattened", modes=KERNELS,
            help="one program per tile; persistent; persistent with tile and k loops flattened into one"),
    choices("peer_order", "rotate", "interleaved", modes=KERNELS,
            help="order of the peers' tiles: one peer after the other, or in turn"),
    numbers("transfer_tiles", 1, 2, 4, 8, 16, 32, modes=KERNELS,
            help="transfer granularity: tiles of an owner that one signal covers"),
    choices("signals", "at_once", "next_turn", modes=KERNELS,
            help="signal a tile right after its stores, or one tile later"),
    numbers("transfer_rows", 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, modes=("copy_engine",),
            help="transfer granularity: rows of A (of one owner or several) that one GEMM takes before the copy"),
    numbers("gemm_streams", 1, 2, 4, modes=("copy_engine",), help="streams over which the chunks' GEMMs alternate"),
    numbers("sum_block", 512, 1024, 2048, 4096, 8192, modes=SUMMING,
            help="elements of C that a program of the final sum takes"),
    numbers("sum_warps", 4, 8, 16, modes=SUMMING, help="warps of a program of the final sum"),
    constraints=(
        *gemm_constraints(),
        *split_constraints(),
        wire_constraint(),
        Constraint("tile within an owner's rows", ("block_m",), _tile_within_rows,
                   "a tile has one owner and may exceed the owner's rows only by rounding up to a power of two"),
        Constraint("transfer within an owner's tiles", ("transfer_tiles", "block_m", "block_n"), _transfer_within_tiles,
                   "a transfer would cover more tiles than an owner has"),
        Constraint("flattening", ("split_k", "schedule"), _split_is_not_flattened,
                   "the programs of a split tile join at its end, so its loop cannot run on into the next tile"),
        Constraint("next turn", ("signals", "schedule"), _next_turn_exists,
                   "only a persistent program has a next tile; in a flattened loop these signals came early on H200"),
        Constraint("order without effect", ("peer_order",), _peers_to_order, "a single peer has no order"),
        Constraint("parts of peers", ("mode",), _peers_exist, "a single rank has nothing to exchange", modes=SUMMING),
        Constraint("chunks", ("transfer_rows",), _chunk_of_sensible_size,
                   f"a chunk holds at least 1/{MOST_CHUNKS} of an owner's rows, and at most all rows of A"),
        scales_of_chunks(),
        Constraint("CUDA graphs", ("launch",), _graphs_exist, "CUDA graphs need a GPU"),
        Constraint("streams", ("gemm_streams",), _one_stream_on_cpu, "streams need a GPU"),
    ),
)  # fmt: skip


FEWEST_ROWS_OF_COPIES = 700
"""Beyond so many rows the copy engines carry the parts: 1.00 to 1.04 of the best from m=2048 on, the push 1.06 to 1.24;
up to m=512 they take 1.5 to 1.9 (2 H100, 2026-11-25).
"""

LINKS_SLOWER = 0.6
"""Links count as the limit where the GEMM takes less than this share of the exchange's time."""

FEW_ROWS_OF_AN_OWNER = 16
"""Up to so many, two narrow programs fit on a compute unit: 1.02 of the best as they are, 1.09 in one round."""


def default_config(problem: GemmReduceScatter, machine: Machine) -> Config:
    """The config used without measuring: on two ranks of sm_90 by arithmetic, elsewhere a push by tiles."""
    chosen = _by_arithmetic(problem, machine)
    found = None if chosen is None else SPACE.first_valid([chosen], problem, machine)
    return found or _push(problem, machine)


def _by_arithmetic(problem: GemmReduceScatter, machine: Machine) -> Config | None:
    """A persistent push if the links are the bottleneck; else copies for many rows, and for few one round of tiles."""
    parts, rows = two_ranks.parts(problem, machine), problem.rows
    if parts is None:
        return None
    push = _push(problem, machine)
    if parts.gemm <= LINKS_SLOWER * parts.exchange:
        tile = two_ranks.filling_tile(problem, machine, rows)
        many = two_ranks.programs_of(tile, problem.m, problem.n) > machine.compute_units
        turns = {"schedule": "persistent", "signals": "next_turn"} if many else {}
        return with_fitting_tile(SPACE, push.replace(**tile, **turns), problem, machine)
    if problem.m > FEWEST_ROWS_OF_COPIES:
        units = [int(value) for value in SPACE.dimensions["transfer_rows"].values]
        unit = next((each for each in units if each >= min(2048, rows) and each * MOST_CHUNKS >= rows), units[-1])
        copies = {"transfer_rows": unit, "gemm_streams": 1, "sum_block": 4096, "sum_warps": 4}
        return Config({"mode": "copy_engine", **copies})
    one_round = two_ranks.one_round_tile(problem, machine, rows) if rows > FEW_ROWS_OF_AN_OWNER else None
    if one_round is None:
        return push
    # Pointers are level with TMA or up to 6 % faster where they need no masks, in tiles of at most 128 columns.
    even = problem.b_order == "nk" and problem.k_local % one_round["block_k"] == 0 and one_round["block_n"] <= 128
    loads = "pointer" if even else push["loads"]
    return with_fitting_tile(SPACE, push.replace(**one_round, loads=loads), problem, machine)


def _push(problem: GemmReduceScatter, machine: Machine) -> Config:
    """A push tile by tile, each tile its own program, of a size to suit an owner's rows."""
    tma = machine.has_tma and not machine.is_interpreter and tma_aligned(Task(problem, machine), "tma")
    tile = default_tile(problem, machine)
    tile["block_m"] = min(tile["block_m"], max(16, round_up(problem.rows)))
    if tile["block_m"] * tile["block_n"] < 128 * tile["num_warps"]:
        tile["num_warps"] = 4
    config: dict[str, Value] = {
        "mode": "push",
        **tile,
        "split_k": 1,
        "loads": "tma" if tma else "pointer",
        "schedule": "tile",
        "peer_order": "rotate",
        "transfer_tiles": 1,
        "signals": "at_once",
    }
    return with_fitting_tile(SPACE, Config(config), problem, machine)


def first_configs(problem: GemmReduceScatter, machine: Machine) -> list[Config]:
    """The default; a push, its tile in other schedules and in the pull; the library's GEMM with either sum of ours."""
    push = _push(problem, machine)
    # Where the loop is flattened, tiles on their way out take memory of their own: 262 KB in all for 128 x 256 and
    # four stages, of 232 on H100 (Triton 3.6); three fit.
    stages = min(3, int(push["num_stages"]))
    found = [
        default_config(problem, machine),
        push,
        *(push.replace(**each) for each in tiles_beside_default(problem, machine)),
        push.replace(schedule="persistent", signals="next_turn"),
        push.replace(schedule="flattened", transfer_tiles=2, num_stages=stages),
        push.replace(peer_order="interleaved"),
        push.replace(transfer_tiles=4),
        push.replace(split_k=2),
        push.replace(mode="pull"),
    ]
    total = {"sum_block": 2048, "sum_warps": 8}
    found.append(Config({"mode": "own_collective", **total}))
    units = [int(value) for value in SPACE.dimensions["transfer_rows"].values]
    for owners in (1, 2, 4):
        unit = next((rows for rows in units if rows >= owners * problem.rows), units[-1])
        copies = {"transfer_rows": unit, "gemm_streams": 1 if machine.is_interpreter else 2}
        found.append(Config({"mode": "copy_engine", **copies, **total}))
    return list(SPACE.valid(found, problem, machine))
