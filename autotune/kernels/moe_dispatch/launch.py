"""Launching the dispatch: the scratch of each mode, its launch, and the library's ways.

Modes: ``bsp`` calls the library, ``push`` and ``pull`` one kernel of ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import OPERAND_TYPES
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate, Run
from autotune.kernels.moe_dispatch import library
from autotune.kernels.moe_dispatch.device import dispatch_kernel
from autotune.kernels.moe_dispatch.exchange import Scratch, exchange_arguments, exchange_scratch, step_columns
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.machine import Machine

ROWS_A_UNIT = 4
"""Programs per compute unit that lay rows out: each has few loads under way."""


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and results, all contiguous."""

    x: torch.Tensor
    """[tokens, hidden]."""
    ids: torch.Tensor
    """int32 [tokens, top_k]: -1 is none."""
    gates: torch.Tensor
    """fp32 [tokens, top_k]."""
    rows: torch.Tensor
    """[capacity, hidden]."""
    offsets: torch.Tensor
    """int32 [local experts + 1]; this and the others are ``moe.routing.Plan``."""
    pairs: torch.Tensor
    """int32 [capacity]."""
    row_gates: torch.Tensor
    """fp32 [capacity]."""


@dataclass(frozen=True)
class ScaledTensors(Tensors):
    scale_x: torch.Tensor
    """fp32 [tokens, 1] or [tokens, hidden / 128]."""
    scale_rows: torch.Tensor
    """fp32 [capacity, 1] or [capacity, hidden / 128]."""


@dataclass(frozen=True, kw_only=True)
class DispatchKnobs(Knobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    launch: str = "eager"
    exchange: str = "all_gather"
    protocol: str = "signal"
    comm_programs: int = 1
    transfer_tokens: int = 1
    split: int = 1
    copy_kib: int = 4
    layout_rows: int = 1
    num_warps: int = 4

    @property
    def ll(self) -> bool:
        """True if tokens travel by the LL protocol."""
        return self.protocol == "ll"

    @property
    def routing_ll(self) -> bool:
        """True if the routing travels by the LL protocol."""
        return self.ll


DispatchCall = Call[MoeDispatch, DispatchKnobs, Tensors, Scratch]


class MoeDispatchKernels(Kernels[MoeDispatch, DispatchKnobs, Tensors, Scratch]):
    knobs = DispatchKnobs
    tensors_type: type[Tensors] = Tensors
    results: tuple[str, ...] = ("rows", "offsets", "pairs", "row_gates")

    def tensors(self, problem: MoeDispatch, shared: Allocate, own: Allocate) -> Tensors:
        dtype, ints, chosen = OPERAND_DTYPES[problem.dtype], torch.int32, (problem.tokens, problem.top_k)
        plain = Tensors(
            x=own((problem.tokens, problem.hidden), dtype),
            ids=own(chosen, ints),
            gates=own(chosen, torch.float32),
            rows=own((problem.capacity, problem.hidden), dtype),
            offsets=own((problem.local_experts + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
        )
        if not problem.scaled:
            return plain
        return ScaledTensors(
            **vars(plain),
            scale_x=own((problem.tokens, problem.row_scales), torch.float32),
            scale_rows=own((problem.capacity, problem.row_scales), torch.float32),
        )

    def scratch(
        self, problem: MoeDispatch, knobs: DispatchKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> Scratch | None:
        """Counters and inboxes; None for ``bsp``."""
        return None if knobs.mode == "bsp" else exchange_scratch(problem, knobs, shared)

    def scratch_bytes(self, problem: MoeDispatch) -> int:
        return problem.exchange_bytes

    def read_by_peers(self, problem: MoeDispatch, knobs: DispatchKnobs) -> tuple[int, ...] | None:
        return (problem.tokens, problem.hidden) if knobs.mode == "pull" else None

    def also_read_by_peers(self, problem: MoeDispatch, knobs: DispatchKnobs) -> tuple[str, ...]:
        return ("scale_x",) if knobs.mode == "pull" and problem.scaled else ()

    def plan(self, call: DispatchCall) -> list[Launch]:
        return [dispatch_launch(call, vars(call.tensors), call.knobs.num_warps)]

    def library(self, call: Call[MoeDispatch, DispatchKnobs, Tensors, None]) -> Run:
        """The host reads the counts of an all-to-all; an all-gather needs none."""
        tensors = call.tensors
        scaled = tensors if isinstance(tensors, ScaledTensors) else None

        def run() -> None:
            rows, of_rows, _ = library.dispatched(call, None if scaled is None else scaled.scale_x)
            tensors.rows[: rows.shape[0]].copy_(rows)
            if scaled is not None and of_rows is not None:
                scaled.scale_rows[: rows.shape[0]].copy_(of_rows)

        return graphed(run) if call.knobs.launch == "graph" else run


class ScaledKernels(MoeDispatchKernels):
    """Kernels for fp8 tokens, whose scales travel with them."""

    tensors_type = ScaledTensors
    results = (*MoeDispatchKernels.results, "scale_rows")


def dispatch_launch(
    call: Call[Any, Any, Any, Any], tensors: dict[str, Any], num_warps: int, product: torch.Tensor | None = None
) -> Launch:  # fmt: skip
    """A dispatch, alone or before a GEMM with the result ``product``: ``tensors`` are those of ``Tensors`` or
    ``ScaledTensors``.
    """
    problem, knobs = call.problem, call.knobs
    laying = min(ROWS_A_UNIT * call.machine.compute_units, math.ceil(problem.capacity / knobs.layout_rows))
    first, arguments = exchange_arguments(call, num_warps)
    arguments |= {
        "scale_x": None, "scale_rows": None, **tensors, "TYPE": getattr(tl, OPERAND_TYPES[problem.dtype].triton),
        "ROWS": knobs.layout_rows, "ROW_COLUMNS": step_columns(problem, knobs.copy_kib, knobs.layout_rows),
        "PER_ROW": problem.row_scales, "product": product, "width": None if product is None else product.shape[1],
    }  # fmt: skip
    return Launch(dispatch_kernel, first + laying, arguments, {"num_warps": num_warps})


KERNELS = MoeDispatchKernels()
SCALED = ScaledKernels()
