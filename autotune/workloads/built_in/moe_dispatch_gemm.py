"""Dispatch of tokens to the ranks of their experts with the first grouped GEMM, as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from autotune.config import Config
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.moe.grouped_launch import GroupedOperands
from autotune.kernels.moe.routing import Plan, planned
from autotune.kernels.moe_dispatch.exchange import Scratch
from autotune.kernels.moe_dispatch_gemm.launch import KERNELS
from autotune.kernels.moe_dispatch_gemm.library import multiply
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_dispatch_gemm.tensors import Tensors
from autotune.task import Task
from autotune.workloads.comparison import distance, drawn, drawn_scales, rounded_gated, rounded_product
from autotune.workloads.dispatched import DispatchedOperation, DispatchedWorkload, check_routing
from autotune.workloads.experts import PLAIN
from autotune.workloads.gemm import result_type
from autotune.workloads.grouped import grouped_operands, is_transposed
from autotune.workloads.interface import Run
from autotune.workloads.launched import Operands
from autotune.workloads.moded import ModedWorkload
from autotune.workloads.tolerance import Error, Tolerance

CLAMPED = 4.0
"""The size of gate and up of gpt-oss' experts, so that some are beyond 7 and are clamped."""


class MoeDispatchGemmOperation(DispatchedOperation[MoeDispatchGemm, Tensors, Scratch]):
    def draw(self, seed: int) -> None:
        """B differs from expert to expert; scaled so that gate and up are of about 1, whatever the depth."""
        super().draw(seed)
        b, scale_b = self._tensors.b, self._tensors.scale_b
        b.copy_(drawn(tuple(b.shape), b.dtype, self._heap.device, seed * 1000 + 700 + self._heap.rank))
        if scale_b is not None:
            scale_b.copy_(drawn_scales(tuple(scale_b.shape), self._heap.device, seed * 1000 + 800 + self._heap.rank))
        if self._problem.gated:
            width = CLAMPED if self._problem.epilogue == "swiglu_oai" else 1.0
            (b if scale_b is None else scale_b).mul_(width * self._problem.hidden**-0.5)
        if self._tensors.bias is not None:
            bias = self._tensors.bias
            bias.copy_(drawn(tuple(bias.shape), bias.dtype, self._heap.device, seed * 1000 + 900 + self._heap.rank))

    def error_of_rows(self, rows: Sequence[torch.Tensor], number: int, places: torch.Tensor, plan: Plan) -> Error:
        """Against the products in fp32, or fp64 for fp32."""
        tokens = self.drawn.numbers(number, places)
        bounds = plan.offsets.tolist()
        parts = [
            tokens[begin:end].to(self.wide) @ self._expert(expert).to(self.wide) + self._bias(expert)
            for expert, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False))
        ]
        return distance(rows[0], self._after(torch.cat(parts)))

    def _expert(self, expert: int) -> torch.Tensor:
        """B of a local expert, of fp8 times its scales."""
        b, scale_b = self._tensors.b, self._tensors.scale_b
        return b[expert] if scale_b is None else dequantised(b[expert], scale_b[expert])

    def _bias(self, expert: int) -> torch.Tensor | float:
        bias = self._tensors.bias
        return 0.0 if bias is None else bias[expert].to(self.wide)

    def _after(self, product: torch.Tensor) -> torch.Tensor:
        problem = self._problem
        if not problem.gated:
            return product
        gate, up = product.chunk(2, dim=1) if problem.halves else (product[:, 0::2], product[:, 1::2])
        if problem.epilogue == "swiglu_oai":
            gate = gate.clamp(max=7.0)
            return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1)
        return torch.nn.functional.silu(gate) * up

    def parts(self) -> dict[str, Run]:
        """An even all-to-all, and the library's grouped GEMM of the rows that the plain routing gives this rank."""
        problem, tensors = self._problem, self._tensors
        plan = planned(problem, self.drawn.routings[PLAIN], self._heap.rank)
        pairs = plan.pairs[: max(1, int(plan.offsets[-1]))]  # the library's GEMM need not take a matrix without rows
        rows, of_rows = self.drawn.sent(PLAIN, pairs // problem.top_k)
        c = tensors.c.new_empty((len(rows), problem.width))
        operands = replace(GroupedOperands.of(problem, rows, of_rows, tensors), offsets=plan.offsets)
        return {"all_to_all": self.exchange(), "gemm": lambda: multiply(operands, c)}


class MoeDispatchGemmWorkload(ModedWorkload, DispatchedWorkload):
    problem_type = MoeDispatchGemm
    operation_type = MoeDispatchGemmOperation
    kernels = KERNELS
    options = ("experts", "epilogue", "gate_up", "routing", "exponent", "fast_accum", "histogram")

    def tolerance_of(self, task: Task[MoeDispatchGemm], config: Config) -> Tolerance:
        problem = task.problem
        roundings = self.kernels.way_of(config).roundings(problem)
        elements = problem.tokens * problem.top_k * problem.width
        rounded = rounded_gated if problem.gated else rounded_product
        return rounded(task, roundings, elements)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> MoeDispatchGemm:
        """X is a contiguous matrix, ids and gates have a row for each of its rows, and B is this rank's experts'."""
        x, ids, gates, b, *scales, bias = operands
        given = dict(zip(self.options, options, strict=True))
        check_routing(x, ids, gates)
        transposed = is_transposed("x", x, b, ("tokens", "hidden", "columns"))
        dtype, kind = grouped_operands("x", x, b, scales, bias, experts=given["experts"], world_size=world_size)
        return MoeDispatchGemm(
            tokens=x.shape[0], hidden=x.shape[1], top_k=ids.shape[1], width=self.out_columns(operands, options),
            b_order="nk" if transposed else "kn", bias=bias is not None, **given, dtype=dtype, scales=kind,
            world_size=world_size,
        )  # fmt: skip

    def out_columns(self, operands: Operands, options: Sequence[Any]) -> int:
        columns: int = operands[3].shape[2]
        return columns // (1 if options[self.options.index("epilogue")] == "none" else 2)

    def out_dtype(self, operands: Operands, options: Sequence[Any]) -> torch.dtype:
        return result_type(operands[0].dtype)


WORKLOAD = MoeDispatchGemmWorkload()
