"""GEMM + all-reduce + residual + RMSNorm in all its modes: each is two ways, of which either may be the library's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.all_reduce_norm import launch as norming
from autotune.kernels.all_reduce_norm import ways
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.kernels.all_reduce_norm.ways import AddNorm, ExchangingWay, LibraryNorm, Tensors
from autotune.kernels.gemm.library import GemmKernels, multiply
from autotune.kernels.gemm_all_reduce import launch as reducing
from autotune.kernels.gemm_all_reduce.fused import FusedWay
from autotune.kernels.gemm_all_reduce.library import BulkSynchronous
from autotune.kernels.gemm_all_reduce.modes import Library
from autotune.kernels.gemm_all_reduce_norm.modes import (
    MODES,
    CustomCollective,
    LibraryCollective,
    NormedTask,
    OneShot,
    TwoShot,
)
from autotune.kernels.gemm_all_reduce_norm.problem import GemmAllReduceNorm
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate, Run
from autotune.kernels.launching.way import ModeKernels, Pair, Then, Way


@dataclass(frozen=True, kw_only=True)
class NormedTensors(SummedTensors):
    """GEMM + all-reduce's, with what follows: ``c`` is total. ``residual`` and ``normed`` [m, n], ``weight`` [n]."""

    residual: torch.Tensor
    weight: torch.Tensor
    normed: torch.Tensor

    def norming(self, summed: torch.Tensor) -> Tensors:
        """The norm's operands and results, where ``summed`` is what it reads."""
        return Tensors(summed, self.residual, self.weight, self.normed, self.c)


@dataclass(frozen=True, kw_only=True)
class QuantisedTensors(NormedTensors):
    """Tensors whose norm is fp8, with its scales."""

    scales: torch.Tensor

    def norming(self, summed: torch.Tensor) -> Tensors:
        return ways.QuantisedTensors(**vars(super().norming(summed)), scales=self.scales)


@dataclass(frozen=True)
class Product:
    part: torch.Tensor
    """[m, n]: this rank's product."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        self.part.fill_(torch.nan)


ProductCall = Call[GemmAllReduceNorm, CustomCollective, NormedTensors, Product]


class LibraryGemm(Way[GemmAllReduceNorm, CustomCollective, NormedTensors, Product]):
    def scratch(self, task: NormedTask, mode: CustomCollective, shared: Allocate, own: Allocate) -> Product:
        return Product(own((task.problem.m, task.problem.n), TORCH_DTYPES[task.problem.result_dtype]))

    def launches(self, call: ProductCall) -> list[Launch]:
        return []

    def run(self, call: ProductCall, launches: list[Launch]) -> Run:
        tensors, bias = call.tensors, call.tensors.bias if call.rank == 0 else None
        return lambda: multiply(call.problem, tensors.a, tensors.scale_a, tensors, call.scratch.part, bias)

    def roundings(self, problem: GemmAllReduceNorm) -> float:
        """Those of the parts count where they are summed."""
        return 0.0


class ThenNorm(Then[GemmAllReduceNorm, Any, NormedTensors]):
    def problem_after(self, problem: GemmAllReduceNorm) -> AllReduceNorm:
        return problem.norm

    def tensors_after(self, call: Call[GemmAllReduceNorm, Any, NormedTensors, Pair | None]) -> Tensors:
        product = call.scratch.before if call.scratch else None
        return call.tensors.norming(product.part if isinstance(product, Product) else call.tensors.c)


class GemmAllReduceNormKernels(GemmKernels, ModeKernels[GemmAllReduceNorm, NormedTensors]):
    modes = MODES
    ways = {
        Library: ThenNorm(BulkSynchronous(), LibraryNorm()), LibraryCollective: ThenNorm(BulkSynchronous(), AddNorm()),
        CustomCollective: ThenNorm(LibraryGemm(), ExchangingWay()),
        OneShot: ThenNorm(FusedWay(), AddNorm()), TwoShot: ThenNorm(FusedWay(), AddNorm()),
    }  # fmt: skip
    tensors_type = NormedTensors
    results = ("normed", "c")

    def tensors(self, problem: GemmAllReduceNorm, shared: Allocate, own: Allocate) -> NormedTensors:
        shape, dtype = (problem.m, problem.n), TORCH_DTYPES[problem.result_dtype]
        given: dict[str, Any] = {
            **vars(reducing.KERNELS.tensors(problem, shared, own)), "residual": own(shape, dtype),
            "weight": own(shape[1:], dtype),
        }  # fmt: skip
        if problem.quantised == "none":
            return NormedTensors(**given, normed=own(shape, dtype))
        scales = own((problem.m, problem.norm.scale_columns), torch.float32)
        return QuantisedTensors(**given, normed=own(shape, OPERAND_DTYPES["fp8"]), scales=scales)

    def scratch_bytes(self, problem: GemmAllReduceNorm) -> int:
        return max(reducing.KERNELS.scratch_bytes(problem), norming.KERNELS.scratch_bytes(problem.norm))


KERNELS = GemmAllReduceNormKernels()
QUANTISING = KERNELS.giving(QuantisedTensors, "normed", "c", "scales")
"""The norm in fp8, and its scales."""
