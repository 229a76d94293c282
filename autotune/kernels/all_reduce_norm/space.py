"""The joint space of all-reduce + residual + RMSNorm, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.config import Config, Value
from autotune.kernels.all_reduce_norm.problem import MOST_INBOX_BYTES, AllReduceNorm
from autotune.kernels.gemm_all_reduce.space import polled_words_fit, protocol_dimension, reduce_constraints
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.search_spaces.dimension import Dimension
from autotune.sizes import round_up
from autotune.task import Task

LIBRARY = ("bsp", "library_collective")
"""Modes in which the library's all-reduce moves the data."""
EXCHANGING = ("one_shot", "two_shot")
"""Modes in which our kernel does."""
OWN = ("library_collective", *EXCHANGING)
"""Modes with a kernel of ours."""

MOST_ROWS_ONE_SHOT = 32
"""Untuned, more rows than this take two shots: one would move world-size / 2 times as much."""

MOST_ELEMENTS = 64
"""Elements of a block that one thread may hold, in fp32, beside residual and weight."""

FEWEST_ELEMENTS = 4
"""Elements of a block for each thread, so that a row is not spread over threads without work."""

MOST_THREADS = 1024


def _threads(s: Task[AllReduceNorm], warps: int) -> int:
    return warps * max(32, int(s.machine.warp_size))


def _row(s: Task[AllReduceNorm]) -> int:
    return round_up(s.problem.n)


def _inbox_fits(s: Task[AllReduceNorm], mode: str, norm_rows: int, protocol: str) -> bool:
    return bool(s.problem.inbox_bytes(mode, norm_rows, protocol) <= MOST_INBOX_BYTES)


def _no_more_than_problem(s: Task[AllReduceNorm], norm_rows: int) -> bool:
    return norm_rows <= round_up(s.problem.m)


def _program_exists(s: Task[AllReduceNorm], norm_warps: int) -> bool:
    return _threads(s, norm_warps) <= MOST_THREADS


def _fits_registers(s: Task[AllReduceNorm], norm_rows: int, norm_warps: int) -> bool:
    return norm_rows * _row(s) <= MOST_ELEMENTS * _threads(s, norm_warps)


def _feeds_every_thread(s: Task[AllReduceNorm], norm_rows: int, norm_warps: int) -> bool:
    return norm_warps == 1 or norm_rows * _row(s) >= FEWEST_ELEMENTS * _threads(s, norm_warps)


def _ll_fit_registers(s: Task[AllReduceNorm], protocol: str, norm_rows: int, norm_warps: int) -> bool:
    return polled_words_fit(s, protocol, norm_rows * _row(s), _threads(s, norm_warps))


def _senders_have_columns(s: Task[AllReduceNorm], senders: int) -> bool:
    return senders <= 1 or ((senders - 1) * (_row(s) // senders) < s.problem.n and _row(s) // senders >= 64)


def norm_dimensions(norming: tuple[str, ...], exchanging: tuple[str, ...]) -> tuple[Dimension, ...]:
    """The dimensions of our norm in modes that have it, and of our all-reduce of rows in those that have that."""
    return (
        numbers("norm_rows", 1, 2, 4, 8, 16, modes=norming, help="transfer granularity: rows of a norming program"),
        numbers("norm_warps", 1, 2, 4, 8, 16, 32, modes=norming, help="warps of a norming program"),
        numbers("senders", 0, 1, 2, 4, 8, modes=exchanging,
                help="extra programs per row block that only send; 0: the summing program sends"),
    )  # fmt: skip


def norm_constraints(exchanging: tuple[str, ...]) -> tuple[Constraint, ...]:
    return (
        Constraint("no more rows than there are", ("norm_rows",), _no_more_than_problem,
                   "a block may exceed the problem's rows only by rounding up to a power of two"),
        Constraint("size of a norming program", ("norm_warps",), _program_exists,
                   "a program has at most 1024 threads"),
        Constraint("registers of a row", ("norm_rows", "norm_warps"), _fits_registers,
                   "a block's rows need more than 64 registers per thread"),
        Constraint("a thread's share of a row", ("norm_rows", "norm_warps"), _feeds_every_thread,
                   "a thread gets fewer than 4 elements of the block"),
        Constraint("LL words of rows fit", ("protocol", "norm_rows", "norm_warps"), _ll_fit_registers,
                   "all ranks' words of a block are polled at once and do not fit into the registers",
                   modes=exchanging),
        Constraint("columns to send", ("senders",), _senders_have_columns,
                   "every sending program needs at least 64 columns of its own"),
    )  # fmt: skip


SPACE = Space(
    choices("mode", *LIBRARY, *EXCHANGING, help="communication strategy"),
    choices("launch", "eager", "graph", modes=LIBRARY, help="library calls one by one, or as a CUDA graph"),
    *norm_dimensions(OWN, EXCHANGING),
    protocol_dimension(EXCHANGING, "sentinel"),
    constraints=(
        *norm_constraints(EXCHANGING),
        Constraint("size of the inbox", ("mode", "norm_rows", "protocol"), _inbox_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much", modes=EXCHANGING),
        *(each for each in reduce_constraints() if each.name in ("LL words arrive", "CUDA graphs")),
    ),
)  # fmt: skip


def norm_shapes(columns: int, wide: int = 16) -> Iterator[dict[str, Value]]:
    """Rows and warps that one would write down without measuring, the best first: a row by threads of ``wide`` elements
    at most.
    """
    known = (4, 8, 16, 32, 2, 1)
    enough = [warps for warps in known if round_up(columns) <= wide * 32 * warps]
    for warps in dict.fromkeys((*enough, *known)):
        yield {"norm_rows": 1, "norm_warps": warps}


def untuned(mode: str, problem: AllReduceNorm, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if no block fits."""
    rest: dict[str, Value] = {"senders": 0, "protocol": "signal"} if mode in EXCHANGING else {"launch": "eager"}
    configs = (Config({"mode": mode, **shape, **rest}) for shape in norm_shapes(problem.n))
    return SPACE.first_valid(configs, problem, machine)


def default_config(problem: AllReduceNorm, machine: Machine) -> Config:
    """One shot for few rows, two for many; the library's all-reduce where neither's inbox fits."""
    order = ("one_shot", "two_shot") if problem.m <= MOST_ROWS_ONE_SHOT else ("two_shot", "one_shot")
    found = (untuned(mode, problem, machine) for mode in (*order, "library_collective"))
    return next((config for config in found if config), Config({"mode": "bsp", "launch": "eager"}))


def first_configs(problem: AllReduceNorm, machine: Machine) -> list[Config]:
    """The default, then each mode as one would write it down, as it is and with protocol and senders changed."""
    found = [default_config(problem, machine)]
    for base in filter(None, (untuned(mode, problem, machine) for mode in OWN)):
        found.append(base)
        if base["mode"] in EXCHANGING:
            wider = base.replace(norm_warps=2 * base.integer("norm_warps"))
            found += [base.replace(senders=4), base.replace(protocol="ll"), wider, wider.replace(protocol="ll")]
            found += [wider.replace(protocol="ll", senders=4), base.replace(protocol="sentinel")]
            found += [wider.replace(protocol="sentinel"), wider.replace(protocol="sentinel", senders=4)]
    return list(SPACE.valid(found, problem, machine))
