"""The joint space of dispatch + grouped GEMM, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from autotune.config import Config
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Setting, Space, choices
from autotune.search_spaces.gemm import tma_aligned
from autotune.search_spaces.grouped import (
    counts_stay,
    grouped_constraints,
    grouped_dimensions,
    grouped_tile,
    halves_by_tma,
)
from autotune.search_spaces.moe_exchange import OWN, exchange_constraints, exchange_dimensions, library_dimensions

FEW_TOKENS = 64
"""Untuned, the routing of up to so many tokens per rank travels by LL words, where these arrive."""


def _leaves_room(s: Setting, comm_programs: int) -> bool:
    return comm_programs <= max(1, s.machine.compute_units // 2)


def _others_come(s: Setting, tile_order: str) -> bool:
    return tile_order == "experts" or int(s.problem.world_size) > 1


def _groups_without_counts(s: Setting, launch: str) -> bool:
    return launch == "eager" or counts_stay(s)


SPACE = Space(
    choices("mode", "bsp", *OWN, help="communication strategy"),
    *library_dimensions(),
    choices("protocol", "signal", "ll", modes=("push",),
            help="routing: data, then a signal; or LL: words of data and flag"),
    *exchange_dimensions(),
    choices("tile_order", "experts", "own_first", modes=OWN, default="experts",
            help="tiles expert by expert; or first those of this rank's own tokens alone, which wait for no transfer"),
    *grouped_dimensions(OWN),
    constraints=(
        *exchange_constraints(),
        *grouped_constraints(),
        Constraint("room for the GEMM", ("comm_programs",), _leaves_room,
                   "programs that move tokens would leave less than half of the device to the GEMM"),
        Constraint("tokens of others", ("tile_order",), _others_come,
                   "with one rank all tokens are its own, and own_first orders nothing"),
        Constraint("graphs of the library's GEMM", ("launch",), _groups_without_counts,
                   "the library groups bf16, and on NVIDIA GPUs fp8, without counts that the host reads"),
    ),
)  # fmt: skip


def untuned(mode: str, problem: MoeDispatchGemm, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if no tile fits."""
    few = problem.tokens <= FEW_TOKENS
    setting = Setting(problem, machine)
    tma = tma_aligned(setting, "tma") and halves_by_tma(setting, "tma")
    tma = tma and machine.has_tma and not machine.is_interpreter
    words = {"protocol": "ll" if few and machine.kind == "cuda" else "signal"} if mode == "push" else {}
    tile = grouped_tile(problem, machine)
    own_tiles = problem.rows_per_expert // problem.world_size >= int(tile["block_m"])
    order = "own_first" if own_tiles and problem.world_size > 1 else "experts"
    for transfer, programs in ((8, 16), (4, 8), (1, 32), (1, 8), (1, 4), (1, 2), (1, 1)):
        for narrower in (1, 2, 4):
            found = Config(
                {"mode": mode, **words, "comm_programs": programs, "transfer_tokens": 1 if few else transfer,
                 "split": 1, "copy_kib": 8, "tile_order": order, **tile, "loads": "tma" if tma else "pointer"}
            )  # fmt: skip
            found = found.replace(block_n=max(32, found.integer("block_n") // narrower))
            if SPACE.violation(found, problem, machine) is None:
                return found
    return None


def default_config(problem: MoeDispatchGemm, machine: Machine) -> Config:
    """Push; the library's way where no tile or no inbox fits."""
    return untuned("push", problem, machine) or Config({"mode": "bsp", "launch": "eager", "exchange": "all_gather"})


def first_configs(problem: MoeDispatchGemm, machine: Machine) -> list[Config]:
    """The default, then each mode as one would write it down, as it is and with its words and programs changed."""
    found = [default_config(problem, machine)]
    for base in filter(None, (untuned(mode, problem, machine) for mode in OWN)):
        found += [base, base.replace(swap_ab=not base["swap_ab"])]
        if "protocol" in base:
            found.append(base.replace(protocol="ll"))
        found.append(base.replace(tile_order="own_first" if base["tile_order"] == "experts" else "experts"))
        found += [base.replace(split=4), base.replace(programs_per_unit=2), base.replace(loads="pointer")]
        found += [base.replace(block_m=16), base.replace(block_m=64), base.replace(comm_programs=8, transfer_tokens=16)]
    return [config for config in dict.fromkeys(found) if SPACE.violation(config, problem, machine) is None]
