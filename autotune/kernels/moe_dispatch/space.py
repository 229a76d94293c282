"""The joint space of the dispatch of tokens to experts, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from autotune.config import Config
from autotune.dtypes import multiplies
from autotune.kernels.gemm_all_reduce.space import protocol_dimension
from autotune.kernels.moe.exchange_space import (
    OWN,
    exchange_constraints,
    exchange_dimensions,
    library_dimensions,
    wide_enough,
)
from autotune.kernels.moe_dispatch.problem import MOST_INBOX_BYTES, MoeDispatch
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.sizes import round_up
from autotune.task import Task

FEW_TOKENS = 64
"""Untuned, up to so many tokens per rank travel by LL words, where these arrive."""


def _rows_are_wide(s: Task[MoeDispatch], copy_kib: int, layout_rows: int) -> bool:
    return wide_enough(s, copy_kib, layout_rows)


def _rows_exist(s: Task[MoeDispatch], layout_rows: int) -> bool:
    return layout_rows <= round_up(s.problem.capacity)


def _type_is_known(s: Task[MoeDispatch], mode: str) -> bool:
    return multiplies(s.machine.kind, s.machine.arch, s.problem.dtype)


def _words_hold_tokens(s: Task[MoeDispatch], protocol: str) -> bool:
    return protocol == "signal" or bool(not s.problem.scaled and s.problem.inbox_bytes(ll=True) <= MOST_INBOX_BYTES)


SPACE = Space(
    choices("mode", "bsp", *OWN, help="communication strategy"),
    *library_dimensions(),
    protocol_dimension(("push",)),
    *exchange_dimensions(),
    numbers("layout_rows", 1, 2, 4, 8, 16, modes=OWN, help="rows that a program lays out at once"),
    numbers("num_warps", 4, 8, 16, modes=OWN, help="warps per program"),
    constraints=(
        *exchange_constraints(),
        Constraint("width of rows", ("copy_kib", "layout_rows"), _rows_are_wide,
                   "a program would lay out fewer than 64 elements of each row at once"),
        Constraint("no more rows than there are", ("layout_rows",), _rows_exist,
                   "a block may exceed the capacity only by rounding up to a power of two"),
        Constraint("element type", ("mode",), _type_is_known,
                   "not an fp8 of this machine: sm_90 and later and gfx950 have fp8 and fp8_e5m2, gfx942 has fp8_fnuz",
                   modes=OWN),
        Constraint("LL words of tokens", ("protocol",), _words_hold_tokens,
                   "LL words carry no fp8 and no scales, and need twice the memory of tokens"),
    ),
)  # fmt: skip


def untuned(mode: str, problem: MoeDispatch, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if its inbox does not fit."""
    few = problem.tokens <= FEW_TOKENS
    words = few and machine.kind == "cuda" and not problem.scaled
    protocol = {"protocol": "ll" if words else "signal"} if mode == "push" else {}
    base = {"mode": mode, **protocol, "split": 1, "copy_kib": 8, "layout_rows": 1 if few else 2, "num_warps": 8}
    shapes = (
        Config({**base, "comm_programs": programs, "transfer_tokens": transfer})
        for transfer in (1 if few else 8, 1)
        for programs in (64, 32, 16, 8, 4, 2, 1)
    )
    return SPACE.first_valid(shapes, problem, machine)


def default_config(problem: MoeDispatch, machine: Machine) -> Config:
    """Push; the library's way where its inbox does not fit."""
    return untuned("push", problem, machine) or Config({"mode": "bsp", "launch": "eager", "exchange": "all_gather"})


def first_configs(problem: MoeDispatch, machine: Machine) -> list[Config]:
    """The default, then each mode as one would write it down, as it is and with protocol and programs changed."""
    found = [default_config(problem, machine)]
    for base in filter(None, (untuned(mode, problem, machine) for mode in OWN)):
        found += [base, base.replace(split=4), base.replace(split=2, comm_programs=32), base.replace(layout_rows=4)]
        if "protocol" in base:
            found += [base.replace(protocol="ll"), base.replace(protocol="signal")]
    return list(SPACE.valid(found, problem, machine))
