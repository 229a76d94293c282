"""Our kernel alone: sums of the first columns, or rows, travel while the GEMM goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import Way
from autotune.kernels.moe.grouped_launch import GroupedOperands, grouped_arguments
from autotune.kernels.moe_combine.own import ROUNDINGS, scratch_of, summing
from autotune.kernels.moe_gemm_combine.apart import Products
from autotune.kernels.moe_gemm_combine.device import gemm_combine_kernel
from autotune.kernels.moe_gemm_combine.modes import Fused, GemmCombineTask, Summed
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.kernels.moe_gemm_combine.tensors import Tensors

UNUSED = ("gather", "N", "PER", "HALVES", "EPILOGUE")
"""Arguments of a grouped GEMM that this one does not have."""


@dataclass(frozen=True)
class GroupedProducts(Products):
    ready: torch.Tensor
    """int32 [groups], on the heap: groups of columns whose products are there, by launch."""
    tickets: torch.Tensor
    """int32 [groups], this rank's alone: finished tiles of a group, zero between launches."""


FusedCall = Call[MoeGemmCombine, Fused, Tensors, GroupedProducts]


class FusedWay(Way[MoeGemmCombine, Fused, Tensors, GroupedProducts]):
    def scratch(self, task: GemmCombineTask, mode: Fused, shared: Allocate, own: Allocate) -> GroupedProducts:
        problem, groups = task.problem, _groups(mode)
        rows = problem.capacity if isinstance(mode, Summed) else 0
        return GroupedProducts(
            **vars(scratch_of(problem, mode, shared, own, groups=groups)),
            y=own((rows, problem.hidden), TORCH_DTYPES[problem.result_dtype]),
            ready=shared((groups,), torch.int32),
            tickets=own((groups,), torch.int32),
        )

    def launches(self, call: FusedCall) -> list[Launch]:
        problem, mode = call.problem, call.knobs
        operands = GroupedOperands.of(problem, call.tensors.a, call.tensors.scale_a, call.tensors)
        gemm = grouped_arguments(mode, operands)
        gemm["depth"] = gemm.pop("K")
        multiplying, (others, combine) = _gemm_programs(call), summing(call, _sending(mode))
        arguments: dict[str, Any] = {
            **vars(call.tensors), **vars(call.scratch),
            **{name: each for name, each in gemm.items() if name not in UNUSED},
            **combine, "gemm_programs": multiplying, "GROUPS": _groups(mode),
        }  # fmt: skip
        return [Launch(gemm_combine_kernel, multiplying + others, arguments, mode.options)]

    def roundings(self, problem: MoeGemmCombine) -> float:
        return 1.0 + ROUNDINGS


def _groups(mode: Fused) -> int:
    return mode.column_groups if isinstance(mode, Summed) else 1


def _sending(mode: Fused) -> int:
    return mode.comm_programs if isinstance(mode, Summed) else 0


def _gemm_programs(call: FusedCall) -> int:
    """Where sums of the first columns travel beside the GEMM, it leaves room to who sends."""
    problem, mode = call.problem, call.knobs
    units = call.machine.compute_units * mode.programs_per_unit - (_groups(mode) > 1) * _sending(mode)
    return max(1, min(mode.most_tiles(problem.capacity, problem.local_experts, problem.hidden), units))
