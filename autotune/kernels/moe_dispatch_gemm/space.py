"""The joint space of dispatch + grouped GEMM, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from autotune.config import Config, in_turns
from autotune.kernels.gemm.space import tma_aligned
from autotune.kernels.moe.exchange_space import (
    OWN,
    exchange_constraints,
    exchange_dimensions,
    library_dimensions,
    wide_enough,
)
from autotune.kernels.moe.grouped_space import (
    counts_stay,
    grouped_constraints,
    grouped_dimensions,
    grouped_tile,
    halves_by_tma,
    narrower_blocks,
    narrower_tiles,
    other_rows,
)
from autotune.kernels.moe_dispatch.problem import MOST_INBOX_BYTES
from autotune.kernels.moe_dispatch_gemm.problem import LAID_OUT, MoeDispatchGemm
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.sizes import round_up
from autotune.task import Task

TILED = ("unfused", *OWN)
"""Modes whose GEMM is ours."""

FEW_TOKENS = 64
"""Untuned, the routing of up to so many tokens per rank travels by LL words, where these arrive."""


def _leaves_room(s: Task[MoeDispatchGemm], mode: str, comm_programs: int) -> bool:
    return mode in LAID_OUT or comm_programs <= max(1, s.machine.compute_units // 2)


def _groups_on_the_device(s: Task[MoeDispatchGemm], mode: str) -> bool:
    return s.machine.is_interpreter or counts_stay(s)


def _words_hold_tokens(s: Task[MoeDispatchGemm], mode: str, protocol: str) -> bool:
    whole = not s.problem.scaled and s.problem.inbox_bytes(ll=True) <= MOST_INBOX_BYTES
    return mode not in LAID_OUT or protocol == "signal" or bool(whole)


def _rows_are_wide(s: Task[MoeDispatchGemm], copy_kib: int, layout_rows: int) -> bool:
    return wide_enough(s, copy_kib, layout_rows) and layout_rows <= round_up(s.problem.capacity)


def _others_come(s: Task[MoeDispatchGemm], tile_order: str) -> bool:
    return tile_order == "experts" or int(s.problem.world_size) > 1


def _groups_without_counts(s: Task[MoeDispatchGemm], launch: str) -> bool:
    return launch == "eager" or counts_stay(s)


SPACE = Space(
    choices("mode", "bsp", *LAID_OUT, *OWN, help="communication strategy"),
    *library_dimensions(),
    choices("protocol", "signal", "ll", modes=(*LAID_OUT, "push"),
            help="routing, and where rows are laid out tokens: data, then a signal; or LL: words of data and flag"),
    *exchange_dimensions((*LAID_OUT, *OWN)),
    numbers("layout_rows", 1, 2, 4, 8, modes=LAID_OUT, help="rows that a program lays out at once"),
    numbers("layout_warps", 4, 8, 16, modes=LAID_OUT, help="warps of a program of the dispatch"),
    choices("tile_order", "experts", "own_first", modes=OWN,
            help="tiles expert by expert; or first those of this rank's own tokens alone, which wait for no transfer"),
    *grouped_dimensions(TILED),
    constraints=(
        *exchange_constraints(),
        *grouped_constraints(),
        Constraint("groups of the library", ("mode",), _groups_on_the_device,
                   "the library's grouped GEMM needs counts on the host, except in bf16, and in fp8 on NVIDIA GPUs",
                   modes=("own_collective",)),
        Constraint("LL words of tokens", ("mode", "protocol"), _words_hold_tokens,
                   "LL words carry no fp8 and no scales, and need twice the memory of tokens"),
        Constraint("width of rows", ("copy_kib", "layout_rows"), _rows_are_wide,
                   "a program would lay out fewer than 64 elements of each row at once, or too many rows"),
        Constraint("room for the GEMM", ("mode", "comm_programs"), _leaves_room,
                   "programs that move tokens would leave less than half of the device to the GEMM"),
        Constraint("tokens of others", ("tile_order",), _others_come,
                   "with one rank all tokens are its own, so own_first changes nothing"),
        Constraint("graphs of the library's GEMM", ("launch",), _groups_without_counts,
                   "the library's grouped GEMM needs counts on the host, except in bf16, and in fp8 on NVIDIA GPUs"),
    ),
)  # fmt: skip


def _tma(problem: MoeDispatchGemm, machine: Machine) -> bool:
    setting = Task(problem, machine)
    fits = tma_aligned(setting, "tma") and halves_by_tma(setting, "tma")
    return fits and machine.has_tma and not machine.is_interpreter


def untuned(mode: str, problem: MoeDispatchGemm, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if no tile fits."""
    few = problem.tokens <= FEW_TOKENS
    words = {"protocol": "ll" if few and machine.kind == "cuda" else "signal"} if mode == "push" else {}
    tile = grouped_tile(problem, machine, gathered=True, tma=_tma(problem, machine))
    own_tiles = problem.rows_per_expert // problem.world_size >= int(tile["block_m"])
    order = "own_first" if own_tiles and problem.world_size > 1 else "experts"
    base = Config({"mode": mode, **words, "split": 1, "copy_kib": 8, "tile_order": order, **tile})
    shapes = (
        base.replace(comm_programs=programs, transfer_tokens=1 if few else transfer, block_n=narrower)
        for transfer, programs in ((8, 16), (4, 8), (1, 32), (1, 8), (1, 4), (1, 2), (1, 1))
        for narrower in narrower_blocks(base)
    )
    return SPACE.first_valid(shapes, problem, machine)


def untuned_laid_out(mode: str, problem: MoeDispatchGemm, machine: Machine) -> Config | None:
    """``untuned`` for a mode of ``LAID_OUT``."""
    few = problem.tokens <= FEW_TOKENS and machine.kind == "cuda"
    protocol = "ll" if few and not problem.scaled else "signal"
    base = Config({
        "mode": mode, "protocol": protocol, "split": 1, "copy_kib": 8, "layout_rows": 1, "layout_warps": 8,
    })  # fmt: skip
    if mode in TILED:
        base = base.replace(**grouped_tile(problem, machine, gathered=False, tma=_tma(problem, machine)))
    shapes = (
        base.replace(comm_programs=programs, transfer_tokens=transfer, **narrower)
        for programs in (128, 64, 32, 16, 8, 4, 2, 1)
        for transfer in (8, 1)
        for narrower in narrower_tiles(base)
    )
    return SPACE.first_valid(shapes, problem, machine)


def default_config(problem: MoeDispatchGemm, machine: Machine) -> Config:
    """One launch for few tokens; for many dispatch and GEMM apart, for a GEMM of laid-out rows takes 5 to 10 % less
    time than one that gathers them; the library's way where no tile or no inbox fits.
    """
    ways = [untuned("push", problem, machine), untuned_laid_out("unfused", problem, machine)]
    library = Config({"mode": "bsp", "launch": "eager", "exchange": "all_gather"})
    return next((config for config in (ways if problem.tokens <= FEW_TOKENS else reversed(ways)) if config), library)


def first_configs(problem: MoeDispatchGemm, machine: Machine) -> list[Config]:
    """The default, each mode as one would write it down, then with its words and programs changed, modes in turns."""
    ways = []
    for base in filter(None, (untuned_laid_out(mode, problem, machine) for mode in LAID_OUT)):
        way = [base, base.replace(layout_rows=4), base.replace(copy_kib=16)]
        if base["mode"] in TILED:
            way += [base.replace(swap_ab=not base["swap_ab"]), *other_rows(base)]
        ways.append([*way, base.replace(comm_programs=32), base.replace(layout_warps=16)])
    for base in filter(None, (untuned(mode, problem, machine) for mode in OWN)):
        way = [base, base.replace(swap_ab=not base["swap_ab"])]
        if "protocol" in base:
            way.append(base.replace(protocol="ll"))
        way.append(base.replace(tile_order="own_first" if base["tile_order"] == "experts" else "experts"))
        way += [base.replace(split=4), base.replace(programs_per_unit=2), base.replace(loads="pointer")]
        way += [*other_rows(base), base.replace(comm_programs=8, transfer_tokens=16)]
        ways.append(way)
    return list(SPACE.valid([default_config(problem, machine), *in_turns(ways)], problem, machine))
