"""The joint space of the dispatch of tokens to experts, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

import math

from autotune.config import Config
from autotune.kernels.moe_dispatch.problem import MOST_INBOX_BYTES, MoeDispatch
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Setting, Space, choices, numbers
from autotune.search_spaces.gemm import round_up
from autotune.search_spaces.gemm_all_reduce import protocol_dimension

OWN = ("push", "pull")
"""Modes with a kernel of ours."""

NARROWEST = 64
"""Elements of a row that a step moves at least, unless a row has fewer."""

FEW_TOKENS = 64
"""Untuned, up to so many tokens per rank travel by LL words, where these arrive."""


def _columns(s: Setting, copy_kib: int, rows: int) -> int:
    return copy_kib * 1024 // int(s.problem.element_size) // rows


def _steps_are_wide(s: Setting, copy_kib: int, transfer_tokens: int, layout_rows: int) -> bool:
    least: int = min(NARROWEST, round_up(s.problem.hidden))
    return all(_columns(s, copy_kib, rows) >= least for rows in (transfer_tokens, layout_rows))


def _tokens_exist(s: Setting, transfer_tokens: int) -> bool:
    return transfer_tokens <= round_up(s.problem.tokens)


def _rows_exist(s: Setting, layout_rows: int) -> bool:
    return layout_rows <= round_up(s.problem.capacity)


def _parts_have_columns(s: Setting, copy_kib: int, transfer_tokens: int, split: int) -> bool:
    return split == 1 or (split - 1) * _columns(s, copy_kib, transfer_tokens) < int(s.problem.hidden)


def _programs_have_work(s: Setting, mode: str, comm_programs: int, transfer_tokens: int, split: int) -> bool:
    units: int = math.ceil(s.problem.tokens / transfer_tokens) * split * (s.problem.world_size if mode == "pull" else 1)
    return comm_programs <= units


def _inbox_fits(s: Setting, mode: str) -> bool:
    return bool(s.problem.inbox_bytes() <= MOST_INBOX_BYTES)


def _ll_inbox_fits(s: Setting, protocol: str) -> bool:
    return protocol == "signal" or bool(s.problem.inbox_bytes(ll=True) <= MOST_INBOX_BYTES)


def _ll_arrive(s: Setting, protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _can_be_captured(s: Setting, launch: str, exchange: str) -> bool:
    return launch == "eager" or (exchange == "all_gather" and not s.machine.is_interpreter)


SPACE = Space(
    choices("mode", "bsp", *OWN, help="communication strategy"),
    choices("launch", "eager", "graph", modes=("bsp",), help="library calls one by one, or as a CUDA graph"),
    choices("exchange", "all_gather", "all_to_all", modes=("bsp",),
            help="every token to every rank, or each where it is wanted, by counts that the host reads"),
    protocol_dimension(("push",)),
    numbers("comm_programs", 1, 2, 4, 8, 16, 32, 64, 128, modes=OWN, help="programs that move tokens between ranks"),
    numbers("transfer_tokens", 1, 2, 4, 8, 16, 32, 64, modes=OWN, help="transfer granularity: tokens per signal"),
    numbers("split", 1, 2, 4, 8, modes=OWN, help="programs that share a block of tokens, a part of the columns each"),
    numbers("copy_kib", 1, 2, 4, 8, 16, modes=OWN, help="KiB that a program moves at once"),
    numbers("layout_rows", 1, 2, 4, 8, 16, modes=OWN, help="rows that a program lays out at once"),
    numbers("num_warps", 4, 8, 16, modes=OWN, help="warps per program"),
    constraints=(
        Constraint("width of a step", ("copy_kib", "transfer_tokens", "layout_rows"), _steps_are_wide,
                   "what a program moves at once has fewer than 64 elements of each row"),
        Constraint("no more tokens than there are", ("transfer_tokens",), _tokens_exist,
                   "a block may exceed a rank's tokens only by rounding up to a power of two"),
        Constraint("no more rows than there are", ("layout_rows",), _rows_exist,
                   "a block may exceed the capacity only by rounding up to a power of two"),
        Constraint("columns to share", ("copy_kib", "transfer_tokens", "split"), _parts_have_columns,
                   "every program of a block needs columns of its own"),
        Constraint("tokens to move", ("mode", "comm_programs", "transfer_tokens", "split"), _programs_have_work,
                   "there are fewer parts of blocks than programs to move them"),
        Constraint("size of the inbox", ("mode",), _inbox_fits, "the inbox needs too much memory", modes=OWN),
        Constraint("size of the LL inbox", ("protocol",), _ll_inbox_fits,
                   "the LL protocol needs twice the memory, which is too much"),
        Constraint("LL words arrive", ("protocol",), _ll_arrive,
                   "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running"),
        Constraint("CUDA graphs", ("launch", "exchange"), _can_be_captured,
                   "CUDA graphs need a GPU, and no counts that the host reads"),
    ),
)  # fmt: skip


def untuned(mode: str, problem: MoeDispatch, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if its inbox does not fit."""
    few = problem.tokens <= FEW_TOKENS
    words = {"protocol": "ll" if few and machine.kind == "cuda" else "signal"} if mode == "push" else {}
    for transfer in (1 if few else 8, 1):
        for programs in (64, 32, 16, 8, 4, 2, 1):
            found = Config(
                {"mode": mode, **words, "comm_programs": programs, "transfer_tokens": transfer, "split": 1,
                 "copy_kib": 8, "layout_rows": 1 if few else 2, "num_warps": 8}
            )  # fmt: skip
            if SPACE.violation(found, problem, machine) is None:
                return found
    return None


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
    return [config for config in dict.fromkeys(found) if SPACE.violation(config, problem, machine) is None]
