"""The joint space of GEMM + all-reduce, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

import itertools
from typing import Any

from autotune.config import Config, Value
from autotune.kernels.gemm import two_ranks
from autotune.kernels.gemm.space import (
    default_tile,
    gemm_constraints,
    gemm_dimensions,
    split_constraints,
    split_dimension,
    tiles_beside_default,
    tma_aligned,
    wire_constraint,
    with_fitting_tile,
)
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES, GemmAllReduce
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.search_spaces.dimension import Dimension
from autotune.sizes import round_up
from autotune.task import Task

KERNELS = ("one_shot", "two_shot")
"""Modes with our own GEMM."""

OWN = ("own_collective", *KERNELS)
"""Modes with our own all-reduce."""

MOST_ROWS_ONE_SHOT = 32
"""Untuned, more rows than this take two shots: one would move world-size / 2 times as much."""

MOST_ROWS_IN_WORDS = 256
"""Beyond, searches do not begin with tiles that travel as words: with 512 rows they take 202.5 µs at best, those by
signal 184.9, of 958 configs with N=8192 K=28672 on 2 H100 (2026-11-25).
"""

MOST_LL_WORDS = 64
"""LL words that one thread may hold: 128 registers."""

SUM_BLOCKS = (512, 1024, 2048, 4096, 8192)
"""Elements of C that a program of our all-reduce takes behind the library's GEMM."""

TRANSFER_ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Rows of C that one of the library's GEMMs takes."""

MOST_CHUNKS = 8
"""Such GEMMs in a call."""


def _inbox_fits(s: Task[GemmAllReduce], mode: str, block_m: int, block_n: int, protocol: str) -> bool:
    tiles = -(-s.problem.m // block_m) * -(-s.problem.n // block_n)
    return bool(s.problem.inbox_bytes(mode, tiles, block_m * block_n, protocol) <= MOST_INBOX_BYTES)


def _row_fits(s: Task[GemmAllReduce], exchange: str, sum_block: int, transfer_rows: int, protocol: str) -> bool:
    tiles = -(-min(s.problem.m, transfer_rows) * s.problem.n // sum_block)
    return bool(s.problem.inbox_bytes(exchange, tiles, sum_block, protocol) <= MOST_INBOX_BYTES)


def _no_longer_than_chunk(s: Task[GemmAllReduce], sum_block: int, transfer_rows: int) -> bool:
    return sum_block <= max(SUM_BLOCKS[0], round_up(min(s.problem.m, transfer_rows) * s.problem.n))


def _equal_chunks(s: Task[GemmAllReduce], transfer_rows: int) -> bool:
    if transfer_rows >= s.problem.m:
        return transfer_rows <= max(TRANSFER_ROWS[0], round_up(s.problem.m))
    return bool(s.problem.m % transfer_rows == 0 and s.problem.m <= MOST_CHUNKS * transfer_rows)


def _peers_exist(s: Task[GemmAllReduce], mode: str) -> bool:
    return int(s.problem.world_size) > 1


def _ll_arrive(s: Task[GemmAllReduce], protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _ll_are_wide(s: Task[GemmAllReduce], protocol: str) -> bool:
    return protocol == "signal" or s.problem.wire == "auto"


def polled_words_fit(s: Task[Any], protocol: str, elements: int, threads: int) -> bool:
    """True if every rank's part of as many elements fits into the registers, where parts are polled at once.

    A sentinel takes half of an LL word's registers.
    """
    data = 8 if protocol == "sentinel" else 4  # bytes, of two registers
    words = round_up(s.problem.world_size) * elements * int(s.problem.result_size) // data
    return protocol == "signal" or words <= MOST_LL_WORDS * threads


def _ll_fit_registers(s: Task[GemmAllReduce], protocol: str, block_m: int, block_n: int, num_warps: int) -> bool:
    return polled_words_fit(s, protocol, block_m * block_n, 32 * num_warps)


def _ll_row_fits_registers(s: Task[GemmAllReduce], protocol: str, sum_block: int, sum_warps: int) -> bool:
    return polled_words_fit(s, protocol, sum_block, 32 * sum_warps)


def _persists(
    s: Task[GemmAllReduce], schedule: str, programs_per_unit: int, split_k: int, block_m: int, block_n: int
) -> bool:
    if schedule == "tile":
        return programs_per_unit == 1
    rows, columns, _ = s.problem.gemm
    tiles = -(-rows // block_m) * -(-columns // block_n)
    return bool(programs_per_unit * s.machine.compute_units < tiles * split_k)


def _all_resident(s: Task[GemmAllReduce], schedule: str, programs_per_unit: int, split_k: int, combine: str) -> bool:
    return schedule == "tile" or programs_per_unit == 1 or split_k == 1 or combine == "separate"


def _graphs_exist(s: Task[GemmAllReduce], launch: str) -> bool:
    return launch == "eager" or not s.machine.is_interpreter


def reduce_dimensions() -> tuple[Dimension, ...]:
    """The dimensions of our kernel, but for the protocol."""
    return (
        *gemm_dimensions(KERNELS),
        split_dimension(KERNELS),
        choices("schedule", "tile", "persistent", modes=KERNELS,
                help="one program per tile and split, or persistent programs"),
        numbers("programs_per_unit", 1, 2, 4, modes=KERNELS, help="persistent programs per compute unit"),
        choices("combine", "sender", "separate", modes=KERNELS,
                help="who sums a tile: the program that sent this rank's part, or separate programs at the end"),
    )  # fmt: skip


def reduce_constraints() -> tuple[Constraint, ...]:
    """Constraints of these dimensions, and of the protocol."""
    return (
        *gemm_constraints(),
        *split_constraints(),
        wire_constraint(),
        Constraint("size of the inbox", ("mode", "block_m", "block_n", "protocol"), _inbox_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much"),
        Constraint("LL words arrive", ("protocol",), _ll_arrive,
                   "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running"),
        Constraint("LL words of fp8", ("protocol",), _ll_are_wide,
                   "LL words hold elements of the result's type; wire=fp8 needs protocol=signal"),
        Constraint("LL words fit", ("protocol", "block_m", "block_n", "num_warps"), _ll_fit_registers,
                   "all ranks' words of a tile are polled at once and do not fit into the registers"),
        Constraint("persistence", ("schedule", "programs_per_unit", "split_k", "block_m", "block_n"), _persists,
                   "a persistent schedule needs more tiles than programs; schedule=tile needs programs_per_unit=1"),
        Constraint("residency", ("schedule", "programs_per_unit", "split_k", "combine"), _all_resident,
                   "a program that combines split tiles could take the place of the program that it waits for"),
        Constraint("CUDA graphs", ("launch",), _graphs_exist, "CUDA graphs need a GPU"),
    )  # fmt: skip


def protocol_dimension(modes: tuple[str, ...], *further: str) -> Dimension:
    """The protocol of finished rows or tiles, in the modes in which they travel; ``further``: "sentinel", if known."""
    help = "data, then a signal; or LL: words of data and flag, twice the bytes, one trip instead of two"
    if further:
        help += "; or sentinel: data alone, polled until it is there, one trip"
    return choices("protocol", "signal", "ll", *further, modes=modes, help=help)


SPACE = Space(
    choices("mode", "bsp", *OWN, help="communication strategy"),
    choices("launch", "eager", "graph", modes=("bsp",), help="library calls one by one, or as a CUDA graph"),
    *reduce_dimensions(),
    choices("exchange", "one_shot", "two_shot", modes=("own_collective",),
            help="each rank sums all parts, or a block's owner does"),
    protocol_dimension(OWN, "sentinel"),
    numbers("transfer_rows", *TRANSFER_ROWS, modes=("own_collective",),
            help="transfer granularity: rows of C that one GEMM and one all-reduce take"),
    numbers("sum_block", *SUM_BLOCKS, modes=("own_collective",),
            help="elements of C that a program of the all-reduce sends and sums"),
    numbers("sum_warps", 4, 8, 16, modes=("own_collective",), help="warps of a program of the all-reduce"),
    constraints=(
        *reduce_constraints(),
        Constraint("parts of peers", ("mode",), _peers_exist, "a single rank has nothing to exchange",
                   modes=("own_collective",)),
        Constraint("chunks", ("transfer_rows",), _equal_chunks,
                   f"at most {MOST_CHUNKS} chunks, of as many rows each; one may exceed C's rows only by "
                   "rounding up to a power of two"),
        Constraint("a block within a chunk", ("sum_block", "transfer_rows"), _no_longer_than_chunk,
                   "a block may exceed a chunk only by rounding up to a power of two"),
        Constraint("size of the blocks' inbox", ("exchange", "sum_block", "transfer_rows", "protocol"), _row_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much"),
        Constraint("LL words of blocks fit", ("protocol", "sum_block", "sum_warps"), _ll_row_fits_registers,
                   "all ranks' words of a block are polled at once and do not fit into the registers"),
    ),
)  # fmt: skip


def untuned(mode: str, problem: GemmAllReduce, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if no tile fits."""
    if mode == "own_collective":
        return _untuned_collective(problem, machine)
    tma = machine.has_tma and not machine.is_interpreter and tma_aligned(Task(problem, machine), "tma")
    tile = default_tile(problem, machine)
    config: dict[str, Value] = {
        "mode": mode,
        **tile,
        "split_k": 1,
        "loads": "tma" if tma else "pointer",
        "schedule": "tile",
        "programs_per_unit": 1,
        "combine": "sender",
        "protocol": "signal",
    }
    return SPACE.first_valid([with_fitting_tile(SPACE, Config(config), problem, machine)], problem, machine)


def _untuned_collective(problem: GemmAllReduce, machine: Machine) -> Config | None:
    exchange = "one_shot" if problem.m <= MOST_ROWS_ONE_SHOT else "two_shot"
    rows = next((rows for rows in TRANSFER_ROWS if rows >= problem.m), TRANSFER_ROWS[-1])
    base: dict[str, Value] = {
        "mode": "own_collective", "exchange": exchange, "protocol": "signal", "transfer_rows": rows, "sum_warps": 4,
    }  # fmt: skip
    shapes = (Config({**base, "sum_block": block}) for block in (1024, *SUM_BLOCKS))
    return SPACE.first_valid(shapes, problem, machine)


MOST_ROWS_AT_ONCE = 256
"""On two ranks, where one shot moves as much as two: beyond, two shots with a separate combine are the fastest."""

LONG_GEMM = 5.0
"""A GEMM that takes as many times as long as its exchange hides one shot; a shorter one goes first, the sum follows."""


def by_arithmetic(problem: GemmAllReduce, machine: Machine) -> str | None:
    """The mode of an untuned config on two ranks of sm_90 with more than a few rows; None elsewhere."""
    parts = two_ranks.parts(problem, machine)
    if parts is None or problem.m <= MOST_ROWS_ONE_SHOT:
        return None
    if problem.m > MOST_ROWS_AT_ONCE:
        return "two_shot"
    return "one_shot" if parts.gemm > LONG_GEMM * parts.exchange else "own_collective"


def _chosen(problem: GemmAllReduce, machine: Machine) -> Config | None:
    mode = by_arithmetic(problem, machine)
    base = None if mode is None else untuned(mode, problem, machine)
    changes = {"own_collective": {"protocol": "sentinel"}, "two_shot": {"combine": "separate"}}.get(str(mode), {})
    return None if base is None else SPACE.first_valid([base.replace(**changes), base], problem, machine)


def default_config(problem: GemmAllReduce, machine: Machine) -> Config:
    """The config used without measuring: on two ranks of sm_90 by arithmetic. Elsewhere one shot for few rows, two for
    many; the library's way where neither's inbox fits.
    """
    chosen = _chosen(problem, machine)
    if chosen is not None:
        return chosen
    order = ("one_shot", "two_shot") if problem.m <= MOST_ROWS_ONE_SHOT else ("two_shot", "one_shot")
    found = (untuned(mode, problem, machine) for mode in order)
    return next((config for config in found if config), Config({"mode": "bsp", "launch": "eager"}))


def first_configs(problem: GemmAllReduce, machine: Machine) -> list[Config]:
    """The default, then each mode as one would write it down, as it is and with its words and splits changed."""
    found = [default_config(problem, machine)]
    for base in filter(None, (untuned(mode, problem, machine) for mode in KERNELS)):
        found += [base, *(base.replace(**each) for each in tiles_beside_default(problem, machine))]
        found += [base.replace(combine="separate"), base.replace(split_k=2), base.replace(split_k=4)]
        for protocol in ("sentinel", "ll") if problem.m <= MOST_ROWS_IN_WORDS else ():
            found += [base.replace(protocol=protocol), base.replace(protocol=protocol, split_k=2)]
    collective = untuned("own_collective", problem, machine)
    if collective is not None:
        words = itertools.product(("one_shot", "two_shot"), ("signal", "sentinel"))
        found += [collective, *(collective.replace(exchange=shots, protocol=protocol) for shots, protocol in words)]
        found += [collective.replace(transfer_rows=problem.m // chunks) for chunks in (2, 4)]
    return list(SPACE.valid(found, problem, machine))
