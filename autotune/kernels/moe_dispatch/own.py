"""Our dispatch, alone or before a GEMM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import OPERAND_TYPES
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Allocate
from autotune.kernels.moe_dispatch.device import dispatch_kernel
from autotune.kernels.moe_dispatch.exchange import ExchangeWay, Scratch, exchange_arguments, exchange_scratch
from autotune.kernels.moe_dispatch.modes import DispatchTask, Own
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.kernels.moe_dispatch.steps import columns_of
from autotune.kernels.moe_dispatch.tensors import Tensors

ROWS_A_UNIT = 4
"""Programs per compute unit that lay rows out: each has few loads under way."""


class OwnWay(ExchangeWay[MoeDispatch, Own, Tensors, Scratch]):
    def scratch(self, task: DispatchTask, mode: Own, shared: Allocate, own: Allocate) -> Scratch:
        return exchange_scratch(task.problem, mode, shared)

    def launches(self, call: Call[MoeDispatch, Own, Tensors, Scratch]) -> list[Launch]:
        return [dispatch_launch(call, vars(call.tensors), call.knobs.num_warps)]

    def roundings(self, problem: MoeDispatch) -> float:
        return 0.0


def dispatch_launch(
    call: Call[Any, Any, Any, Any], tensors: Mapping[str, Any], num_warps: int, product: torch.Tensor | None = None
) -> Launch:  # fmt: skip
    """A dispatch, alone or before a GEMM with the result ``product``: ``tensors`` are those of ``Tensors`` or
    ``ScaledTensors``.
    """
    problem, mode = call.problem, call.knobs
    laying = min(ROWS_A_UNIT * call.machine.compute_units, math.ceil(problem.capacity / mode.layout_rows))
    first, arguments = exchange_arguments(call, num_warps)
    arguments |= {
        "scale_x": None, "scale_rows": None, **tensors, "TYPE": getattr(tl, OPERAND_TYPES[problem.dtype].triton),
        "ROWS": mode.layout_rows, "ROW_COLUMNS": columns_of(problem, mode.copy_kib, mode.layout_rows),
        "PER_ROW": problem.row_scales, "product": product, "width": None if product is None else product.shape[1],
    }  # fmt: skip
    return Launch(dispatch_kernel, first + laying, arguments, {"num_warps": num_warps})
