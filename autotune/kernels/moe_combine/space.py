"""The joint space of the combine of experts' rows, and the config that a sensible engineer would use untuned."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.config import Config, Value
from autotune.kernels.gemm_all_reduce.space import MOST_LL_WORDS, protocol_dimension
from autotune.kernels.moe_combine.problem import MOST_INBOX_BYTES, MoeCombine
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.search_spaces.dimension import Dimension
from autotune.sizes import round_up
from autotune.task import Task

OWN = ("push", "pull", "one_shot")
"""Modes with a kernel of ours."""
SUMMING = ("push", "pull")
"""Modes that sum a token's rows where they are before they send."""

NARROWEST = 64
"""Elements of a row that a step moves at least, unless a row has fewer."""
MOST_ELEMENTS = 64
"""Elements of a step that one thread may hold, in fp32."""
MOST_ROW_BYTES = 256
"""Bytes of all the rows of a step's tokens that one thread may hold."""
FEW_TOKENS = 16
"""Untuned, rows of up to so many tokens per rank travel as they are."""


def columns_of(s: Task[MoeCombine], copy_kib: int, transfer_tokens: int) -> int:
    return min(copy_kib * 1024 // int(s.problem.result_size) // transfer_tokens, round_up(s.problem.hidden))


def _steps_are_wide(s: Task[MoeCombine], copy_kib: int, transfer_tokens: int) -> bool:
    return columns_of(s, copy_kib, transfer_tokens) >= min(NARROWEST, round_up(s.problem.hidden))


def _fits_registers(s: Task[MoeCombine], copy_kib: int, transfer_tokens: int, num_warps: int) -> bool:
    elements = transfer_tokens * columns_of(s, copy_kib, transfer_tokens)
    return elements <= MOST_ELEMENTS * 32 * num_warps


def _rows_fit_registers(s: Task[MoeCombine], mode: str, copy_kib: int, transfer_tokens: int, **warps: int) -> bool:
    elements = transfer_tokens * columns_of(s, copy_kib, transfer_tokens) * round_up(s.problem.top_k)
    return mode == "one_shot" or elements * int(s.problem.result_size) <= MOST_ROW_BYTES * 32 * sum(warps.values())


def _tokens_exist(s: Task[MoeCombine], transfer_tokens: int) -> bool:
    return transfer_tokens <= round_up(s.problem.tokens)


def _parts_have_columns(s: Task[MoeCombine], copy_kib: int, transfer_tokens: int, split: int) -> bool:
    return split == 1 or (split - 1) * columns_of(s, copy_kib, transfer_tokens) < int(s.problem.hidden)


def _programs_have_work(s: Task[MoeCombine], mode: str, comm_programs: int, transfer_tokens: int, split: int) -> bool:
    if mode == "one_shot":
        return bool(comm_programs <= s.problem.capacity * split)
    units: int = math.ceil(s.problem.tokens / transfer_tokens) * split * s.problem.world_size
    return comm_programs <= units


def _inbox_fits(s: Task[MoeCombine], mode: str) -> bool:
    return mode == "bsp" or bool(s.problem.inbox_bytes(mode) <= MOST_INBOX_BYTES)


def _ll_inbox_fits(s: Task[MoeCombine], mode: str, protocol: str) -> bool:
    return protocol == "signal" or bool(s.problem.inbox_bytes(mode, ll=True) <= MOST_INBOX_BYTES)


def _ll_arrive(s: Task[MoeCombine], protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _ll_fit_registers(s: Task[MoeCombine], protocol: str, copy_kib: int, transfer_tokens: int, num_warps: int) -> bool:
    elements = round_up(s.problem.top_k) * transfer_tokens * columns_of(s, copy_kib, transfer_tokens)
    return protocol == "signal" or elements * int(s.problem.result_size) // 4 <= MOST_LL_WORDS * 32 * num_warps


def can_be_captured(s: Task[MoeCombine], launch: str, exchange: str) -> bool:
    """True if a graph can hold the library's calls."""
    return launch == "eager" or (exchange != "all_to_all" and not s.machine.is_interpreter)


def library_dimensions() -> tuple[Dimension, ...]:
    """The dimensions of the library's way."""
    return (
        choices("launch", "eager", "graph", modes=("bsp",), help="library calls one by one, or as a CUDA graph"),
        choices("exchange", "reduce_scatter", "all_to_all", modes=("bsp",),
                help="sums of every token in a collective of fixed shapes, or those that there are, by counts that the "
                     "host reads"),
    )  # fmt: skip


def sum_dimensions(modes: tuple[str, ...]) -> tuple[Dimension, ...]:
    """The dimensions of sending and summing rows, in the modes in which our kernel does."""
    return (
        choices("peer_order", "rotate", "interleaved", modes=tuple(mode for mode in modes if mode != "one_shot"),
                help="send to one peer after the other, or each block of tokens to peers in turn"),
        numbers("transfer_tokens", 1, 2, 4, 8, 16, modes=modes, help="transfer granularity: tokens per signal"),
        numbers("split", 1, 2, 4, 8, modes=modes, help="programs that share a block of tokens, a part of the columns "
                                                       "each"),
        numbers("copy_kib", 1, 2, 4, 8, 16, 32, modes=modes, help="KiB that a program sums and moves at once"),
    )  # fmt: skip


def rows_constraint(warps: str, modes: tuple[str, ...]) -> Constraint:
    """Rows of a step fit the registers of the summing programs, which have this many ``warps``, in these modes."""
    return Constraint("registers of rows", ("mode", "copy_kib", "transfer_tokens", warps), _rows_fit_registers,
                      "a token's rows are loaded at once, and need more than 64 registers per thread",
                      modes=modes)  # fmt: skip


def sum_constraints() -> tuple[Constraint, ...]:
    """Constraints of these dimensions, of the inbox and of the library's."""
    return (
        Constraint("width of a step", ("copy_kib", "transfer_tokens"), _steps_are_wide,
                   "a program would move fewer than 64 elements of each row at once"),
        Constraint("registers of a step", ("copy_kib", "transfer_tokens", "num_warps"), _fits_registers,
                   "the rows that a program sums at once need more than 64 registers per thread", modes=OWN),
        rows_constraint("num_warps", OWN),
        Constraint("no more tokens than there are", ("transfer_tokens",), _tokens_exist,
                   "a block may exceed a rank's tokens only by rounding up to a power of two"),
        Constraint("columns to share", ("copy_kib", "transfer_tokens", "split"), _parts_have_columns,
                   "every program of a block needs columns of its own"),
        Constraint("size of the inbox", ("mode",), _inbox_fits, "the inbox needs too much memory"),
        Constraint("CUDA graphs", ("launch", "exchange"), can_be_captured,
                   "CUDA graphs need a GPU, and cannot hold exchange=all_to_all, whose counts the host reads"),
    )  # fmt: skip


def ll_constraints() -> tuple[Constraint, ...]:
    return (
        Constraint("size of the LL inbox", ("mode", "protocol"), _ll_inbox_fits,
                   "the LL protocol needs twice the memory, which is too much"),
        Constraint("LL words arrive", ("protocol",), _ll_arrive,
                   "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running"),
        Constraint("LL words fit", ("protocol", "copy_kib", "transfer_tokens", "num_warps"), _ll_fit_registers,
                   "the LL words of all rows of a token are polled at once and do not fit into the registers"),
    )  # fmt: skip


SPACE = Space(
    choices("mode", "bsp", *OWN, help="communication strategy"),
    *library_dimensions(),
    protocol_dimension(("one_shot",)),
    numbers("comm_programs", 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, modes=OWN, help="programs that send"),
    *sum_dimensions(OWN),
    numbers("num_warps", 4, 8, 16, modes=OWN, help="warps per program"),
    constraints=(
        *sum_constraints(),
        *ll_constraints(),
        Constraint("rows to send", ("mode", "comm_programs", "transfer_tokens", "split"), _programs_have_work,
                   "there are fewer parts of blocks, or rows, than programs to send them"),
    ),
)  # fmt: skip


def sum_shapes(problem: MoeCombine) -> Iterator[dict[str, Value]]:
    """Blocks of tokens that one would write down without measuring, the best first."""
    few = problem.tokens <= FEW_TOKENS
    of_few, of_many = ((1, 4, 2), (1, 2, 1), (1, 1, 4)), ((2, 1, 8), (2, 1, 4), (1, 1, 4), (1, 1, 2))
    for transfer, split, kib in of_few if few else of_many:
        for programs in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
            yield {"transfer_tokens": transfer, "split": split, "copy_kib": kib, "comm_programs": programs}


def untuned(mode: str, problem: MoeCombine, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``OWN`` without measuring; None if its inbox does not fit."""
    ll = machine.kind == "cuda"
    words: dict[str, Value] = {"peer_order": "rotate"} if mode in SUMMING else {"protocol": "ll" if ll else "signal"}
    shapes = (Config({"mode": mode, **words, **shape, "num_warps": 8}) for shape in sum_shapes(problem))
    return SPACE.first_valid(shapes, problem, machine)


def default_config(problem: MoeCombine, machine: Machine) -> Config:
    """Rows as they are for few tokens, sums for many; the library's way where no inbox fits."""
    order = ("one_shot", "push") if problem.tokens <= FEW_TOKENS else ("push", "one_shot")
    found = (untuned(mode, problem, machine) for mode in order)
    library = Config({"mode": "bsp", "launch": "eager", "exchange": "reduce_scatter"})
    return next((config for config in found if config), library)


def first_configs(problem: MoeCombine, machine: Machine) -> list[Config]:
    """The default, then each mode as one would write it down, as it is and with its words and sizes changed."""
    found = [default_config(problem, machine)]
    for base in filter(None, (untuned(mode, problem, machine) for mode in OWN)):
        found += [base, base.replace(split=2), base.replace(transfer_tokens=1), base.replace(copy_kib=4)]
        if "protocol" in base:
            found += [base.replace(protocol="ll"), base.replace(protocol="signal")]
        else:
            found.append(base.replace(peer_order="interleaved"))
    return list(SPACE.valid(found, problem, machine))
