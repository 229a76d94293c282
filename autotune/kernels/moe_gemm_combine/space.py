"""The joint space of grouped GEMM + combine, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

import math

from autotune.config import Config, Value, in_turns
from autotune.kernels.gemm.space import tma_aligned
from autotune.kernels.gemm_all_reduce.space import protocol_dimension
from autotune.kernels.moe.grouped_space import (
    counts_stay,
    grouped_constraints,
    grouped_dimensions,
    grouped_tile,
    narrower_blocks,
    narrower_tiles,
    other_rows,
)
from autotune.kernels.moe_combine.space import (
    FEW_TOKENS,
    OWN,
    SUMMING,
    library_dimensions,
    ll_constraints,
    rows_constraint,
    sum_constraints,
    sum_dimensions,
)
from autotune.kernels.moe_gemm_combine.problem import APART, MoeGemmCombine
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.task import Task

TILED = ("unfused", *OWN)
"""Modes whose GEMM is ours."""


def _groups_have_tiles(s: Task[MoeGemmCombine], column_groups: int, block_n: int) -> bool:
    tiles = -(-int(s.problem.hidden) // block_n)
    return (column_groups - 1) * -(-tiles // column_groups) < tiles


def _counts_stay_on_the_device(s: Task[MoeGemmCombine], launch: str) -> bool:
    return launch == "eager" or (s.machine.kind == "cuda" and counts_stay(s))


def _groups_on_the_device(s: Task[MoeGemmCombine], mode: str) -> bool:
    return s.machine.is_interpreter or counts_stay(s)


def _leaves_room(s: Task[MoeGemmCombine], comm_programs: int, column_groups: int) -> bool:
    return column_groups == 1 or comm_programs <= max(1, s.machine.compute_units // 2)


def _senders_have_work(s: Task[MoeGemmCombine], comm_programs: int, transfer_tokens: int, split: int) -> bool:
    units: int = math.ceil(s.problem.tokens / transfer_tokens) * split * s.problem.world_size
    return comm_programs <= units


def _ll_words_are_whole(s: Task[MoeGemmCombine], protocol: str, block_m: int, block_n: int, num_warps: int) -> bool:
    return protocol == "signal" or block_m * block_n <= 64 * 32 * num_warps


SPACE = Space(
    choices("mode", "bsp", *APART, *OWN, help="communication strategy"),
    *library_dimensions(),
    protocol_dimension(("one_shot",)),
    choices("combine", *SUMMING, modes=APART,
            help="push sums to the token's rank, or let that rank pull them"),
    numbers("comm_programs", 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, modes=(*APART, *SUMMING),
            help="programs that send sums"),
    numbers("column_groups", 1, 2, 4, 8, modes=SUMMING,
            help="groups of columns: sums of one travel while the next is computed"),
    *sum_dimensions((*APART, *OWN)),
    numbers("sum_warps", 4, 8, 16, modes=APART, help="warps of a program of the combine"),
    *grouped_dimensions(TILED),
    constraints=(
        *sum_constraints(),
        rows_constraint("sum_warps", APART),
        *ll_constraints(),
        *grouped_constraints(),
        Constraint("groups of the library", ("mode",), _groups_on_the_device,
                   "the library's grouped GEMM needs counts on the host, except in bf16, and in fp8 on NVIDIA GPUs",
                   modes=("own_collective",)),
        Constraint("graph of the library's GEMM", ("launch",), _counts_stay_on_the_device,
                   "the library's grouped GEMM needs counts on the host, except in bf16 and fp8 on NVIDIA GPUs"),
        Constraint("tiles of a group", ("column_groups", "block_n"), _groups_have_tiles,
                   "every group of columns needs a column of tiles"),
        Constraint("room for the GEMM", ("comm_programs", "column_groups"), _leaves_room,
                   "programs that send would leave less than half of the device to the GEMM"),
        Constraint("sums to send", ("comm_programs", "transfer_tokens", "split"), _senders_have_work,
                   "there are fewer parts of blocks than programs to send them"),
        Constraint("LL words of a tile", ("protocol", "block_m", "block_n", "num_warps"), _ll_words_are_whole,
                   "a tile's LL words need more than 64 registers per thread"),
    ),
)  # fmt: skip


def _tile(problem: MoeGemmCombine, machine: Machine) -> dict[str, Value]:
    """Tile, pipeline and loads of our GEMM without measuring; smaller ones may be needed."""
    tma = machine.has_tma and not machine.is_interpreter and tma_aligned(Task(problem, machine), "tma")
    return grouped_tile(problem, machine, gathered=False, tma=tma)


def untuned(mode: str, problem: MoeGemmCombine, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if no tile fits."""
    few = problem.tokens <= FEW_TOKENS
    tile = _tile(problem, machine)
    sending: list[dict[str, Value]] = [{"protocol": "ll" if machine.kind == "cuda" else "signal"}]
    if mode in SUMMING:
        # 16 programs and 4 groups took 1.9 times as long with 1024 tokens, 2.2 times with 4096 (2 H100, 2026-11-24).
        sending = [
            {"peer_order": "rotate", "comm_programs": programs, "column_groups": 1}
            for programs in ((16, 8, 4, 2, 1) if few else (64, 32, 16, 8, 4, 2, 1))
        ]
    base = Config({"mode": mode, "split": 1, **tile})
    shapes = (
        base.replace(**words, block_n=narrower, transfer_tokens=transfer, copy_kib=kib)
        for words in sending
        for narrower in narrower_blocks(base)
        for transfer, kib in (((1, 2), (1, 1)) if few else ((2, 8), (2, 4), (1, 4), (1, 1)))
    )
    return SPACE.first_valid(shapes, problem, machine)


def untuned_apart(mode: str, problem: MoeGemmCombine, machine: Machine) -> Config | None:
    """``untuned`` for a mode of ``APART``."""
    words: dict[str, Value] = {"mode": mode, "combine": "push", "peer_order": "rotate", "split": 1, "sum_warps": 8}
    base = Config({**words, **(_tile(problem, machine) if mode in TILED else {})})
    shapes = (
        base.replace(comm_programs=programs, transfer_tokens=transfer, copy_kib=kib, **narrower)
        for transfer, kib in ((2, 8), (1, 4), (1, 2), (1, 1))  # a thread has all of a column's rows
        for programs in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
        for narrower in narrower_tiles(base)
    )
    return SPACE.first_valid(shapes, problem, machine)


def default_config(problem: MoeGemmCombine, machine: Machine) -> Config:
    """Rows as they are for few tokens; for many GEMM and sums apart, which was the fastest from 16 tokens on (2 H100,
    2026-11-24); the library's way where no tile or no inbox fits.
    """
    ways = [untuned("one_shot", problem, machine), untuned_apart("unfused", problem, machine)]
    found = ways if problem.tokens <= FEW_TOKENS else reversed(ways)
    library = Config({"mode": "bsp", "launch": "eager", "exchange": "reduce_scatter"})
    return next((config for config in found if config), library)


def first_configs(problem: MoeGemmCombine, machine: Machine) -> list[Config]:
    """The default, each mode as one would write it down, then with its words and sizes changed, modes in turns."""
    ways = []
    for base in filter(None, (untuned_apart(mode, problem, machine) for mode in APART)):
        way = [base, base.replace(transfer_tokens=1, copy_kib=2, sum_warps=4), base.replace(comm_programs=128)]
        if base["mode"] in TILED:
            way += [base.replace(swap_ab=not base["swap_ab"]), *other_rows(base)]
        ways.append([*way, base.replace(combine="pull"), base.replace(peer_order="interleaved")])
    for base in filter(None, (untuned(mode, problem, machine) for mode in OWN)):
        way = [base]
        if "protocol" in base:
            way += [base.replace(protocol="ll"), base.replace(protocol="signal")]
        else:
            way.append(base.replace(comm_programs=128))
            way += [base.replace(column_groups=groups, comm_programs=16) for groups in (4, 8)]
            way.append(base.replace(peer_order="interleaved"))
        way += [base.replace(split=2), base.replace(swap_ab=not base["swap_ab"]), base.replace(loads="pointer")]
        way += [*other_rows(base), base.replace(programs_per_unit=2)]
        ways.append(way)
    return list(SPACE.valid([default_config(problem, machine), *in_turns(ways)], problem, machine))
