"""The GEMM's part of a joint space: dimensions and constraints shared by every workload with our GEMM.

A problem describes one rank's GEMM by its property ``gemm``: rows, columns and depth.
"""

from __future__ import annotations

import itertools
from typing import Any

from autotune.config import Config
from autotune.dtypes import SCALE_BLOCK, WGMMA_ROWS, multiplies, rounds_to_fp8
from autotune.kernels.gemm.problem import GemmProblem
from autotune.search_spaces.space import Constraint, Space
from autotune.sizes import round_up
from autotune.task import Task

MOST_SPLIT_PROGRAMS = 8
"""Programs per compute unit up to which a tile's depth may be split; beyond, joining costs more."""


def _one_stream_on_cpu(s: Task[Any], gemm_streams: int) -> bool:
    return gemm_streams == 1 or not s.machine.is_interpreter


def _split_is_not_flattened(s: Task[Any], split_k: int, schedule: str) -> bool:
    return split_k == 1 or schedule != "flattened"


STREAMS = Constraint("streams", ("gemm_streams",), _one_stream_on_cpu, "streams need a GPU")
FLATTENING = Constraint(
    "flattening", ("split_k", "schedule"), _split_is_not_flattened,
    "the programs of a split tile join at its end, so its loop cannot run on into the next tile",
)  # fmt: skip


def operands_constraint() -> Constraint:
    return Constraint("element type", ("mode",), _operands_multiplied,
                      "this machine has no matrix units for these operands: sm_89 and later and gfx950 take fp8 and "
                      "fp8_e5m2, gfx942 takes fp8_fnuz")  # fmt: skip


def tile_constraints() -> tuple[Constraint, ...]:
    """Constraints of a tile of our GEMM."""
    return (
        Constraint("scales by blocks", ("block_k",), _one_scale_a_step,
                   "a step of more than 128 of K would need several scales"),
        Constraint("no larger than the problem", ("block_m", "block_n", "block_k"), _no_larger_than_problem,
                   "a tile may exceed the problem only by rounding up to a power of two"),
        Constraint("registers", ("block_m", "block_n", "num_warps"), _fits_registers,
                   "the fp32 accumulator needs more than 128 registers per thread"),
        Constraint("a warp's share", ("block_m", "block_n", "num_warps"), _feeds_every_warp,
                   "a warp gets less than 128 elements of the tile"),
        Constraint("TMA exists", ("loads",), _tma_available, "only NVIDIA GPUs from sm_90 on have TMA"),
        Constraint("warps of their own", ("loads", "block_m"), _specializes,
                   "the compiler gives loads warps of their own on sm_100 and sm_103 alone, for tiles of 64 rows and "
                   "more without scales by blocks"),
        Constraint("TMA alignment", ("loads",), tma_aligned,
                   "TMA needs rows, and halves of B's rows, that are multiples of 16 bytes"),
        Constraint("shared memory", ("block_m", "block_n", "block_k", "num_stages", "loads"), fits_shared_memory,
                   "the pipeline's stages do not fit into a program's shared memory"),
    )  # fmt: skip


def wire_constraint() -> Constraint:
    return Constraint("fp8 on its way", ("mode",), _wire_converts,
                      "this machine does not convert to fp8, unlike sm_89 and later, gfx942, gfx950; "
                      "use wire=auto")  # fmt: skip


def split_constraints() -> tuple[Constraint, ...]:
    """Constraints of a split of the depth."""
    return (
        Constraint("depth of a split", ("split_k", "block_k"), _split_is_deep,
                   "each split needs at least one step of block_k"),
        Constraint("splits needed", ("split_k", "block_m", "block_n"), _split_is_needed,
                   "fewer splits already give every compute unit enough programs"),
    )  # fmt: skip


def with_fitting_tile(space: Space, config: Config, task: Task[GemmProblem]) -> Config:
    """A config with fewer stages, then shorter steps, then fewer columns, where its tile does not fit (fp32, odd sizes,
    less shared memory), then with all columns and steps of 32; the narrowest if none does.
    """
    columns, depth, stages = (config.integer(name) for name in ("block_n", "block_k", "num_stages"))
    fewer = range(stages, 1, -1)
    widths = [columns // parts for parts in (1, 2, 4, 8) if columns // parts >= 32]
    shapes = [
        *itertools.product(widths, dict.fromkeys((depth, min(64, depth))), fewer),
        *itertools.product([columns], [min(32, depth)], fewer),
    ]
    tiles = [config.replace(block_n=n, block_k=k, num_stages=number) for n, k, number in shapes]
    valid = (tile for tile in tiles if space.violation(tile, task) is None)
    return next(valid, config.replace(block_n=widths[-1], block_k=min(64, depth), num_stages=min(2, stages)))


def scales_of_chunks() -> Constraint:
    """Constraint of the library's GEMMs on parts of A's rows."""
    return Constraint("scales of chunks", ("mode",), _scales_aligned,
                      "the library's GEMM needs row scales that begin at multiples of 16 bytes: 4 rows of a shard",
                      modes=("copy_engine",))  # fmt: skip


def _scales_aligned(s: Task[Any], mode: str) -> bool:
    rows = s.problem.m // s.problem.world_size
    return s.problem.scales != "row" or s.machine.kind != "cuda" or rows % 4 == 0


def tma_aligned(s: Task[Any], loads: str) -> bool:
    """True if the rows of A, B and C are multiples of 16 bytes, and so is where up begins in a row of B."""
    _, columns, depth = s.problem.gemm
    of_b = columns // (1 + s.problem.halves) if s.problem.b_order == "kn" else depth
    of_c = columns // (1 + s.problem.gated)
    rows = (depth * s.problem.element_size, of_b * s.problem.element_size, of_c * s.problem.result_size)
    return loads == "pointer" or all(size % 16 == 0 for size in rows)


def _operands_multiplied(s: Task[GemmProblem], mode: str) -> bool:
    return multiplies(s.machine.kind, s.machine.arch, s.problem.dtype)


def _wire_converts(s: Task[GemmProblem], mode: str) -> bool:
    return s.problem.wire == "auto" or rounds_to_fp8(s.machine.kind, s.machine.arch)


def _one_scale_a_step(s: Task[GemmProblem], block_k: int) -> bool:
    return s.problem.scales != "block" or block_k <= SCALE_BLOCK


def _no_larger_than_problem(s: Task[GemmProblem], block_m: int, block_n: int, block_k: int) -> bool:
    rows, columns, depth = s.problem.gemm
    return (
        block_m <= max(16, round_up(rows))
        and block_n <= max(32, round_up(columns))
        and block_k <= max(32, round_up(depth))
    )


def _fits_registers(s: Task[GemmProblem], block_m: int, block_n: int, num_warps: int) -> bool:
    return bool(block_m * block_n <= 128 * s.machine.warp_size * num_warps)


def _feeds_every_warp(s: Task[GemmProblem], block_m: int, block_n: int, num_warps: int) -> bool:
    return block_m * block_n >= 128 * num_warps


def _tma_available(s: Task[GemmProblem], loads: str) -> bool:
    return loads == "pointer" or bool(s.machine.has_tma)


def _specializes(s: Task[GemmProblem], loads: str, block_m: int) -> bool:
    in_tensor_memory = s.machine.arch in ("sm_100", "sm_103") and block_m >= WGMMA_ROWS
    return loads != "specialized" or (in_tensor_memory and s.problem.scales != "block")


def fits_shared_memory(
    s: Task[GemmProblem], block_m: int, block_n: int, block_k: int, num_stages: int, loads: str
) -> bool:
    """True if the stages of a pipeline and the tile of C that TMA stores fit into a program's shared memory."""
    held = pipeline_bytes(s, block_m, block_n, block_k, num_stages)
    output = block_m * min(block_n, max(32, block_n // 2)) * s.problem.result_size if loads != "pointer" else 0
    return bool(held + output <= s.machine.shared_memory)


def pipeline_bytes(task: Task[GemmProblem], block_m: int, block_n: int, block_k: int, num_stages: int) -> int:
    """Bytes of shared memory that the stages of A and B take."""
    machine = task.machine
    # One stage less where the oldest is in registers: on gfx942 on its way in; below 64 rows, too few for sm_90's
    # wgmma, as operand, but not in fp32, which tensor cores do not take. On gfx950 Triton 3.9 copies every stage
    # straight into LDS, with a sixteenth of padding at most (3.6 as on gfx942).
    few_rows = machine.kind == "cuda" and block_m < WGMMA_ROWS and task.problem.dtype != "fp32"
    stages = max(1, num_stages - (few_rows or machine.arch == "gfx942"))
    operands = (block_m + block_n) * block_k * task.problem.element_size
    operands += operands // 16 if machine.arch == "gfx950" else 0
    return stages * operands


def _split_is_deep(s: Task[GemmProblem], split_k: int, block_k: int) -> bool:
    return bool((split_k - 1) * block_k < s.problem.gemm[2])


def _split_is_needed(s: Task[GemmProblem], split_k: int, block_m: int, block_n: int) -> bool:
    rows, columns, _ = s.problem.gemm
    tiles = -(-rows // block_m) * -(-columns // block_n)
    return split_k == 1 or tiles * split_k <= MOST_SPLIT_PROGRAMS * s.machine.compute_units
