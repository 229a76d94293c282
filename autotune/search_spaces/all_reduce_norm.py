"""The joint space of all-reduce + residual + RMSNorm, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

from autotune.config import Config, Value
from autotune.kernels.all_reduce_norm.problem import MOST_INBOX_BYTES, AllReduceNorm
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Setting, Space, choices, numbers
from autotune.search_spaces.gemm import round_up

LIBRARY = ("bsp", "library_collective")
"""Modes in which the library's all-reduce moves the data."""
EXCHANGING = ("one_shot", "two_shot")
"""Modes in which our kernel does."""
OWN = ("library_collective", *EXCHANGING)
"""Modes with a kernel of ours."""

MOST_ROWS_ONE_SHOT = 32
"""Untuned, more rows than this take two shots: one would move world-size / 2 times as much."""

MOST_LL_WORDS = 64
"""LL words that one thread may hold: 128 registers."""

MOST_ELEMENTS = 64
"""Elements of a block that one thread may hold, in fp32, beside residual and weight."""

FEWEST_ELEMENTS = 4
"""Elements of a block for each thread, so that a row is not spread over threads without work."""

MOST_THREADS = 1024


def _threads(s: Setting, num_warps: int) -> int:
    return num_warps * max(32, int(s.machine.warp_size))


def _row(s: Setting) -> int:
    return round_up(s.problem.n)


def _inbox_fits(s: Setting, mode: str, block_m: int, protocol: str) -> bool:
    return bool(s.problem.inbox_bytes(mode, block_m, ll=protocol == "ll") <= MOST_INBOX_BYTES)


def _no_larger_than_problem(s: Setting, block_m: int) -> bool:
    return block_m <= round_up(s.problem.m)


def _program_exists(s: Setting, num_warps: int) -> bool:
    return _threads(s, num_warps) <= MOST_THREADS


def _fits_registers(s: Setting, block_m: int, num_warps: int) -> bool:
    return block_m * _row(s) <= MOST_ELEMENTS * _threads(s, num_warps)


def _feeds_every_thread(s: Setting, block_m: int, num_warps: int) -> bool:
    return num_warps == 1 or block_m * _row(s) >= FEWEST_ELEMENTS * _threads(s, num_warps)


def _ll_arrive(s: Setting, protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _ll_fit_registers(s: Setting, protocol: str, block_m: int, num_warps: int) -> bool:
    words = round_up(s.problem.world_size) * block_m * _row(s) * int(s.problem.element_size) // 4
    return protocol == "signal" or words <= MOST_LL_WORDS * _threads(s, num_warps)


def _senders_have_columns(s: Setting, senders: int) -> bool:
    return senders <= 1 or (senders - 1) * (_row(s) // senders) < s.problem.n and _row(s) // senders >= 64


def _graphs_exist(s: Setting, launch: str) -> bool:
    return launch == "eager" or not s.machine.is_interpreter


SPACE = Space(
    choices("mode", *LIBRARY, *EXCHANGING, help="communication strategy"),
    choices("launch", "eager", "graph", modes=LIBRARY, help="library calls one by one, or as a CUDA graph"),
    numbers("block_m", 1, 2, 4, 8, 16, modes=OWN, help="transfer granularity: rows of one program"),
    numbers("num_warps", 1, 2, 4, 8, 16, 32, modes=OWN, help="warps of a program"),
    numbers("senders", 0, 1, 2, 4, 8, modes=EXCHANGING,
            help="programs per block of rows that only send, a range of columns each; 0: the one that sums sends"),
    choices("protocol", "signal", "ll", modes=EXCHANGING,
            help="data, then a signal; or LL: words of data and flag, twice the bytes, one trip instead of two"),
    constraints=(
        Constraint("size of the inbox", ("mode", "block_m", "protocol"), _inbox_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much", modes=EXCHANGING),
        Constraint("no larger than the problem", ("block_m",), _no_larger_than_problem,
                   "a block may exceed the problem's rows only by rounding up to a power of two"),
        Constraint("size of a program", ("num_warps",), _program_exists, "a program has at most 1024 threads"),
        Constraint("registers", ("block_m", "num_warps"), _fits_registers,
                   "a block's rows need more than 64 registers per thread"),
        Constraint("a thread's share", ("block_m", "num_warps"), _feeds_every_thread,
                   "a thread gets fewer than 4 elements of the block"),
        Constraint("LL words arrive", ("protocol",), _ll_arrive,
                   "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running"),
        Constraint("LL words fit", ("protocol", "block_m", "num_warps"), _ll_fit_registers,
                   "all ranks' LL words of a block are polled at once and do not fit into the registers"),
        Constraint("columns to send", ("senders",), _senders_have_columns,
                   "every sending program needs columns of its own, 64 at least"),
        Constraint("CUDA graphs", ("launch",), _graphs_exist, "CUDA graphs need a GPU"),
    ),
)  # fmt: skip


def untuned(mode: str, problem: AllReduceNorm, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if no block fits."""
    rest: dict[str, Value] = {"senders": 0, "protocol": "signal"} if mode in EXCHANGING else {"launch": "eager"}
    configs = [Config({"mode": mode, "block_m": 1, "num_warps": warps, **rest}) for warps in (4, 8, 16, 32, 2, 1)]
    fitting = [config for config in configs if SPACE.violation(config, problem, machine) is None]
    wide = (config for config in fitting if round_up(problem.n) <= 16 * 32 * config.integer("num_warps"))
    return next(wide, fitting[0] if fitting else None)


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
            wider = base.replace(num_warps=2 * base.integer("num_warps"))
            found += [base.replace(senders=4), base.replace(protocol="ll"), wider, wider.replace(protocol="ll")]
            found += [wider.replace(protocol="ll", senders=4)]
    return [config for config in dict.fromkeys(found) if SPACE.violation(config, problem, machine) is None]
