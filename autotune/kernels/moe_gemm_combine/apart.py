"""A GEMM, ours or the library's, then our combine alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from autotune.kernels.gemm.library import OF_A_LIBRARY
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.kernels.launching.way import Way
from autotune.kernels.moe.grouped_launch import GroupedOperands, gemm_apart
from autotune.kernels.moe_combine.own import ROUNDINGS, Scratch, combine_launch, scratch_of
from autotune.kernels.moe_gemm_combine.modes import Apart, CustomCollective, GemmCombineTask
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.kernels.moe_gemm_combine.tensors import OF_GEMM, Tensors, library_product

A = TypeVar("A", bound=Apart)


@dataclass(frozen=True)
class Products(Scratch):
    """What a combine has, and of the GEMM:"""

    y: torch.Tensor
    """[capacity, hidden], this rank's alone: products, of no rows where the library allocates them or they travel."""

    def poison(self) -> None:
        super().poison()
        self.y.fill_(math.nan)


class _ApartWay(Way[MoeGemmCombine, A, Tensors, Products]):
    keeps_products = True
    """False: the library allocates them."""

    def scratch(self, task: GemmCombineTask, mode: A, shared: Allocate, own: Allocate) -> Products:
        problem = task.problem
        rows = problem.capacity if self.keeps_products else 0
        y = own((rows, problem.hidden), TORCH_DTYPES[problem.result_dtype])
        return Products(**vars(scratch_of(problem, mode, shared, own)), y=y)

    def combine(self, call: Call[MoeGemmCombine, A, Tensors, Products]) -> Launch:
        scratch = call.scratch
        given: dict[str, Any] = {name: value for name, value in vars(call.tensors).items() if name not in OF_GEMM}
        given |= {each.name: getattr(scratch, each.name) for each in fields(Scratch)} | {"rows": scratch.y}
        return combine_launch(call, given, call.knobs.sum_warps)


class OurGemmWay(_ApartWay[A]):
    def launches(self, call: Call[MoeGemmCombine, A, Tensors, Products]) -> list[Launch]:
        operands = GroupedOperands.of(call.problem, call.tensors.a, call.tensors.scale_a, call.tensors)
        return [gemm_apart(call.task, call.knobs, operands, call.scratch.y), self.combine(call)]

    def roundings(self, problem: MoeGemmCombine) -> float:
        return 1.0 + ROUNDINGS


class CustomCollectiveWay(_ApartWay[CustomCollective]):
    keeps_products = False

    def launches(self, call: Call[MoeGemmCombine, CustomCollective, Tensors, Products]) -> list[Launch]:
        """The library's GEMM will say where its rows are: at an aligned address, as nothing is."""
        return [self.combine(call)]

    def run(self, call: Call[MoeGemmCombine, CustomCollective, Tensors, Products], launches: list[Launch]) -> Run:
        (launch,) = launches

        def run() -> None:
            rows = library_product(call.problem, call.tensors)
            replace(launch, arguments={**launch.arguments, "rows": rows}).run()

        return run

    def roundings(self, problem: MoeGemmCombine) -> float:
        return 1.0 + OF_A_LIBRARY + ROUNDINGS
