"""Grouped GEMM and combine of its rows at their tokens' ranks as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.moe_gemm_combine.apart import Products
from autotune.kernels.moe_gemm_combine.launch import KERNELS
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.kernels.moe_gemm_combine.tensors import Tensors, library_product
from autotune.task import Task
from autotune.workloads.combined import (
    CombinedOperation,
    CombinedWorkload,
    DrawnRows,
    combined_tolerance,
    factor_of,
    plan_of_a_call,
)
from autotune.workloads.comparison import drawn, drawn_deep, drawn_scales, with_lost
from autotune.workloads.gemm import result_type
from autotune.workloads.grouped import grouped_operands, is_transposed
from autotune.workloads.interface import Run
from autotune.workloads.launched import Operands
from autotune.workloads.moded import ModedWorkload
from autotune.workloads.tolerance import Tolerance


class MoeGemmCombineOperation(CombinedOperation[MoeGemmCombine, Tensors, Products]):
    def draw(self, seed: int) -> None:
        """Every rank can draw every expert's B."""
        self.drawn = DrawnRows(self._problem, self._heap, seed, self._problem.width, drawn_deep)
        self._seed = seed
        first = self._heap.rank * self._problem.local_experts
        for local in range(self._problem.local_experts):
            for name, part in self._of_expert(first + local).items():
                getattr(self._tensors, name)[local].copy_(part)

    def _of_expert(self, expert: int) -> dict[str, torch.Tensor]:
        """An expert's B, its scales and its bias, where there are any."""
        tensors, device, seed = self._tensors, self._heap.device, self._seed * 1000 + 1_000_003 * expert
        found = {"b": drawn(tuple(tensors.b.shape[1:]), tensors.b.dtype, device, seed + 600)}
        if tensors.scale_b is not None:
            found["scale_b"] = drawn_scales(tuple(tensors.scale_b.shape[1:]), device, seed + 800)
        if tensors.bias is not None:
            found["bias"] = drawn(tuple(tensors.bias.shape[1:]), tensors.bias.dtype, device, seed + 900)
        return found

    def sums(self, number: int, weights: torch.Tensor) -> torch.Tensor:
        """Over its experts, gate and factor times a token's vector @ the expert's B."""
        own, ids = self.drawn.own(number).to(self.wide), self.drawn.ids(number)
        expected = torch.zeros(self._tensors.out.shape, dtype=self.wide, device=own.device)
        for expert in ids[ids >= 0].unique().tolist():
            token, place = (ids == expert).nonzero(as_tuple=True)
            its = self._of_expert(expert)
            b = dequantised(its["b"], its["scale_b"]) if self._problem.scaled else its["b"]
            product = own[token] @ b.to(self.wide)
            if self._problem.bias:
                product += its["bias"].to(self.wide) / factor_of(place)[:, None]
            expected.index_add_(0, token, product * weights[token, place, None])
        return expected

    def parts(self) -> dict[str, Run]:
        """The library's grouped GEMM of the rows of the plain routing, which is there, and what combines them."""

        def gemm() -> None:
            library_product(self._problem, self._tensors)

        return {"gemm": gemm, **super().parts()}


class MoeGemmCombineWorkload(ModedWorkload, CombinedWorkload):
    problem_type = MoeGemmCombine
    operation_type = MoeGemmCombineOperation
    kernels = KERNELS
    options = ("routing", "exponent", "deterministic", "fast_accum", "histogram")

    def tolerance_of(self, task: Task[MoeGemmCombine], config: Config) -> Tolerance:
        roundings = self.kernels.way_of(config).roundings(task.problem)
        found = combined_tolerance(task, roundings, task.problem.width)
        return with_lost(task, found)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> MoeGemmCombine:
        """A is a contiguous matrix, laid out by the plan of the tokens with these ids; B is this rank's experts'."""
        a, b, offsets, pairs, gates, ids, *scales, bias = operands
        transposed = is_transposed("a", a, b, ("capacity", "width", "hidden"))
        given: dict[str, Any] = dict(zip(self.options, options, strict=True))
        given |= plan_of_a_call(world_size, a, (offsets, pairs, gates), ids)
        dtype, kind = grouped_operands("a", a, b, scales, bias, experts=given["experts"], world_size=world_size)
        return MoeGemmCombine(
            hidden=b.shape[2], width=a.shape[1], b_order="nk" if transposed else "kn", **given, dtype=dtype,
            scales=kind, bias=bias is not None, world_size=world_size,
        )  # fmt: skip

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        b, ids = operands[1], operands[5]
        return (ids.shape[0], b.shape[2])

    def out_dtype(self, operands: Operands, options: Sequence[Any]) -> torch.dtype:
        return result_type(operands[0].dtype)


WORKLOAD = MoeGemmCombineWorkload()
