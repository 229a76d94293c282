"""The joint space of GEMM + all-reduce + residual + RMSNorm: its parts' dimensions, and who does which part."""

from __future__ import annotations

import itertools

from autotune.config import Config, Value
from autotune.kernels.all_reduce_norm.problem import MOST_INBOX_BYTES
from autotune.kernels.all_reduce_norm.space import MOST_ROWS_ONE_SHOT, norm_constraints, norm_dimensions, norm_shapes
from autotune.kernels.gemm_all_reduce import space as reducing
from autotune.kernels.gemm_all_reduce.space import protocol_dimension, reduce_constraints, reduce_dimensions
from autotune.kernels.gemm_all_reduce_norm.problem import GemmAllReduceNorm
from autotune.machine import Machine
from autotune.search_spaces import Constraint, Space, choices
from autotune.task import Task

LIBRARY = ("bsp", "library_collective")
"""Modes in which the library's all-reduce moves the data."""
FUSED = reducing.KERNELS
"""Modes in which our GEMM does."""
NORMED = ("library_collective", "own_collective", *FUSED)
"""Modes that use our norm."""


def _inbox_fits(s: Task[GemmAllReduceNorm], exchange: str, norm_rows: int, protocol: str) -> bool:
    return bool(s.problem.norm.inbox_bytes(exchange, norm_rows, protocol) <= MOST_INBOX_BYTES)


SPACE = Space(
    choices("mode", *LIBRARY, "own_collective", *FUSED, help="communication strategy"),
    choices("launch", "eager", "graph", modes=LIBRARY, help="library calls one by one, or as a CUDA graph"),
    *reduce_dimensions(),
    choices("exchange", "one_shot", "two_shot", modes=("own_collective",),
            help="each rank sums all parts, or a block's owner does"),
    protocol_dimension(("own_collective", *FUSED), "sentinel"),
    *norm_dimensions(NORMED, ("own_collective",)),
    constraints=(
        *reduce_constraints(),
        *norm_constraints(("own_collective",)),
        Constraint("size of the rows' inbox", ("exchange", "norm_rows", "protocol"), _inbox_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much"),
    ),
)  # fmt: skip


def untuned(mode: str, problem: GemmAllReduceNorm, machine: Machine) -> Config | None:
    """The config that one would write down for a mode of ``NORMED`` without measuring; None if nothing fits."""
    if mode in FUSED:
        base = reducing.untuned(mode, problem, machine)
    else:
        rest: dict[str, Value] = {"launch": "eager"}
        if mode == "own_collective":
            exchange = "one_shot" if problem.m <= MOST_ROWS_ONE_SHOT else "two_shot"
            rest = {"exchange": exchange, "protocol": "signal", "senders": 0}
        base = Config({"mode": mode, **rest})
    configs = (base.replace(**shape) for shape in norm_shapes(problem.n)) if base is not None else ()
    return SPACE.first_valid(configs, problem, machine)


def default_config(problem: GemmAllReduceNorm, machine: Machine) -> Config:
    """The library's GEMM, then our all-reduce with the norm: nobody's tile has to fit. On two ranks of sm_90 that sum
    travels as words, or a GEMM that is long enough does it in one shot, as in GEMM + all-reduce.
    """
    mode = reducing.by_arithmetic(problem, machine)
    if mode in ("one_shot", "own_collective"):
        base = untuned(mode, problem, machine)
        words = {"protocol": "sentinel"} if mode == "own_collective" else {}
        chosen = None if base is None else SPACE.first_valid([base.replace(**words)], problem, machine)
        if chosen is not None:
            return chosen
    found = (untuned(mode, problem, machine) for mode in ("own_collective", "library_collective"))
    return next((config for config in found if config), Config({"mode": "bsp", "launch": "eager"}))


def first_configs(problem: GemmAllReduceNorm, machine: Machine) -> list[Config]:
    """The default, then each mode as one would write it down, as it is and with its words changed."""
    found = [default_config(problem, machine)]
    for base in filter(None, (untuned(mode, problem, machine) for mode in NORMED)):
        found.append(base)
        if base["mode"] == "own_collective":
            words = itertools.product(("one_shot", "two_shot"), ("signal", "sentinel", "ll"), (0, 4))
            found += [base.replace(exchange=shots, protocol=protocol, senders=n) for shots, protocol, n in words]
        elif base["mode"] in FUSED:
            found += [base.replace(combine="separate"), base.replace(split_k=2), base.replace(split_k=4)]
            for protocol in ("sentinel", "ll"):
                found += [base.replace(protocol=protocol), base.replace(protocol=protocol, split_k=2)]
    return list(SPACE.valid(found, problem, machine))
