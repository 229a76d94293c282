"""The exchange's part of a joint space: how routing and tokens travel, for workloads that begin with a dispatch."""

from __future__ import annotations

import math
from typing import Any

from autotune.kernels.moe_dispatch.problem import MOST_INBOX_BYTES
from autotune.search_spaces.dimension import Dimension, choices, numbers
from autotune.search_spaces.space import Constraint
from autotune.sizes import round_up
from autotune.task import Task

OWN = ("push", "pull")
"""Modes with a kernel of ours."""

NARROWEST = 64
"""Elements of a row that a step moves at least, unless a row has fewer."""


def step_columns(s: Task[Any], copy_kib: int, rows: int) -> int:
    """Elements of each of so many rows that a program moves at once."""
    return copy_kib * 1024 // int(s.problem.element_size) // rows


def wide_enough(s: Task[Any], copy_kib: int, rows: int) -> bool:
    """True if a step has enough columns."""
    return step_columns(s, copy_kib, rows) >= min(NARROWEST, round_up(s.problem.hidden))


def _tokens_exist(s: Task[Any], transfer_tokens: int) -> bool:
    return transfer_tokens <= round_up(s.problem.tokens)


def _parts_have_columns(s: Task[Any], copy_kib: int, transfer_tokens: int, split: int) -> bool:
    return split == 1 or (split - 1) * step_columns(s, copy_kib, transfer_tokens) < int(s.problem.hidden)


def _programs_have_work(s: Task[Any], mode: str, comm_programs: int, transfer_tokens: int, split: int) -> bool:
    peers = max(1, int(s.problem.world_size) - 1) if mode == "pull" else 1
    units: int = math.ceil(s.problem.tokens / transfer_tokens) * split * peers
    return comm_programs <= units


def _inbox_fits(s: Task[Any], mode: str) -> bool:
    return mode == "bsp" or bool(s.problem.inbox_bytes() <= MOST_INBOX_BYTES)


def _ll_arrive(s: Task[Any], protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _can_be_captured(s: Task[Any], launch: str, exchange: str) -> bool:
    return launch == "eager" or (exchange == "all_gather" and not s.machine.is_interpreter)


def library_dimensions() -> tuple[Dimension, ...]:
    return (
        choices("launch", "eager", "graph", modes=("bsp",), help="library calls one by one, or as a CUDA graph"),
        choices("exchange", "all_gather", "all_to_all", modes=("bsp",),
                help="every token to every rank, or each where it is wanted, by counts that the host reads"),
    )  # fmt: skip


def exchange_dimensions(modes: tuple[str, ...] = OWN) -> tuple[Dimension, ...]:
    """Dimensions of our kernels, without the protocol."""
    return (
        numbers("comm_programs", 1, 2, 4, 8, 16, 32, 64, 128, modes=modes, help="programs that move tokens"),
        numbers("transfer_tokens", 1, 2, 4, 8, 16, 32, 64, modes=modes, help="transfer granularity: tokens per signal"),
        numbers("split", 1, 2, 4, 8, modes=modes,
                help="programs that share a block of tokens, a part of the columns each"),
        numbers("copy_kib", 1, 2, 4, 8, 16, modes=modes, help="KiB that a program moves at once"),
    )  # fmt: skip


def exchange_constraints() -> tuple[Constraint, ...]:
    """Constraints of all of these, and of the protocol."""
    return (
        Constraint("width of a step", ("copy_kib", "transfer_tokens"),
                   lambda s, copy_kib, transfer_tokens: wide_enough(s, copy_kib, transfer_tokens),
                   "a program would move fewer than 64 elements of each token at once"),
        Constraint("no more tokens than there are", ("transfer_tokens",), _tokens_exist,
                   "a block may exceed a rank's tokens only by rounding up to a power of two"),
        Constraint("columns to share", ("copy_kib", "transfer_tokens", "split"), _parts_have_columns,
                   "every program of a block needs columns of its own"),
        Constraint("tokens to move", ("mode", "comm_programs", "transfer_tokens", "split"), _programs_have_work,
                   "there are fewer parts of blocks than programs to move them"),
        Constraint("size of the inbox", ("mode",), _inbox_fits, "the inbox needs too much memory"),
        Constraint("LL words arrive", ("protocol",), _ll_arrive,
                   "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running"),
        Constraint("CUDA graphs", ("launch", "exchange"), _can_be_captured,
                   "CUDA graphs need a GPU, and cannot hold exchange=all_to_all, whose counts the host reads"),
    )  # fmt: skip
