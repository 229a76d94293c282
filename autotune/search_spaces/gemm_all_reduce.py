"""The joint space of GEMM + all-reduce, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from autotune.config import Config, Value
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES, GemmAllReduce
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Setting, Space, choices, numbers, renamed
from autotune.search_spaces.dimension import Dimension
from autotune.search_spaces.gemm import (
    default_tile,
    fp8_tiles,
    gemm_constraints,
    gemm_dimensions,
    round_up,
    split_constraints,
    split_dimension,
    tma_aligned,
    wire_constraint,
)

KERNELS = ("one_shot", "two_shot")
"""Modes with our own kernel."""

MOST_ROWS_ONE_SHOT = 32
"""Untuned, more rows than this take two shots: one would move world-size / 2 times as much."""

MOST_LL_WORDS = 64
"""LL words that one thread may hold: 128 registers."""


def _inbox_fits(s: Setting, mode: str, block_m: int, block_n: int, protocol: str) -> bool:
    wanted = s.problem.inbox_bytes(mode, block_m, block_n, ll=protocol == "ll")
    return bool(wanted <= MOST_INBOX_BYTES)


def _ll_arrive(s: Setting, protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _ll_are_wide(s: Setting, protocol: str) -> bool:
    return protocol == "signal" or s.problem.wire == "auto"


def _ll_fit_registers(s: Setting, protocol: str, block_m: int, block_n: int, num_warps: int) -> bool:
    words = round_up(s.problem.world_size) * block_m * block_n * int(s.problem.result_size) // 4
    return protocol == "signal" or words <= MOST_LL_WORDS * 32 * num_warps


def _persists(s: Setting, schedule: str, programs_per_unit: int, split_k: int, block_m: int, block_n: int) -> bool:
    if schedule == "tile":
        return programs_per_unit == 1
    rows, columns, _ = s.problem.gemm
    tiles = -(-rows // block_m) * -(-columns // block_n)
    return bool(programs_per_unit * s.machine.compute_units < tiles * split_k)


def _all_resident(s: Setting, schedule: str, programs_per_unit: int, split_k: int, combine: str) -> bool:
    return schedule == "tile" or programs_per_unit == 1 or split_k == 1 or combine == "separate"


def _graphs_exist(s: Setting, launch: str) -> bool:
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
                help="who waits for a tile's parts: the sender of ours, or a separate program at the launch's end"),
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
                   "LL words hold elements of the result's type; with wire=fp8 parts are signalled"),
        Constraint("LL words fit", ("protocol", "block_m", "block_n", "num_warps"), _ll_fit_registers,
                   "all ranks' LL words of a tile are polled at once and do not fit into the registers"),
        Constraint("persistence", ("schedule", "programs_per_unit", "split_k", "block_m", "block_n"), _persists,
                   "a persistent schedule needs more tiles than programs; the schedule tile has programs_per_unit=1"),
        Constraint("residency", ("schedule", "programs_per_unit", "split_k", "combine"), _all_resident,
                   "a program that combines split tiles could occupy the place of a program that it waits for"),
        Constraint("CUDA graphs", ("launch",), _graphs_exist, "CUDA graphs need a GPU"),
    )  # fmt: skip


def protocol_dimension(modes: tuple[str, ...]) -> Dimension:
    """How finished rows or tiles travel, in the modes in which they do."""
    help = "data, then a signal; or LL: words of data and flag, twice the bytes, one trip instead of two"
    return choices("protocol", "signal", "ll", modes=modes, help=help)


SPACE = Space(
    choices("mode", "bsp", "one_shot", "two_shot", help="communication strategy"),
    choices("launch", "eager", "graph", modes=("bsp",), help="library calls one by one, or as a CUDA graph"),
    *reduce_dimensions(),
    protocol_dimension(KERNELS),
    constraints=reduce_constraints(),
    renamed=renamed.GEMM_ALL_REDUCE,
)


def untuned(mode: str, problem: GemmAllReduce, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``KERNELS`` without measuring; None if no tile fits."""
    tma = machine.has_tma and not machine.is_interpreter and tma_aligned(Setting(problem, machine), "tma")
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
    found = Config(config)
    while SPACE.violation(found, problem, machine) is not None and found.integer("block_n") > 32:
        # fp32 and odd shapes: a smaller tile fits where the usual one does not.
        stages = max(2, found.integer("num_stages") - 1)
        found = found.replace(
            block_n=found.integer("block_n") // 2, block_k=min(64, tile["block_k"]), num_stages=stages
        )
    return found if SPACE.violation(found, problem, machine) is None else None


def default_config(problem: GemmAllReduce, machine: Machine) -> Config:
    """One shot for few rows, two for many; the library's way where neither's inbox fits."""
    order = ("one_shot", "two_shot") if problem.m <= MOST_ROWS_ONE_SHOT else ("two_shot", "one_shot")
    found = (untuned(mode, problem, machine) for mode in order)
    return next((config for config in found if config), Config({"mode": "bsp", "launch": "eager"}))


def first_configs(problem: GemmAllReduce, machine: Machine) -> list[Config]:
    """The default, then each mode as one would write it down, as it is and with its words and splits changed."""
    found = [default_config(problem, machine)]
    for base in filter(None, (untuned(mode, problem, machine) for mode in KERNELS)):
        found += [base, *(base.replace(**each) for each in fp8_tiles(problem, machine))]
        found += [base.replace(combine="separate"), base.replace(split_k=2), base.replace(split_k=4)]
        if "protocol" in base:
            found += [base.replace(protocol="ll"), base.replace(protocol="ll", split_k=2)]
    return [config for config in dict.fromkeys(found) if SPACE.violation(config, problem, machine) is None]
