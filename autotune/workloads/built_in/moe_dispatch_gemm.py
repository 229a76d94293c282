"""Dispatch of tokens to the ranks of their experts with the first grouped GEMM, as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.moe.library import Scaling
from autotune.kernels.moe.routing import Plan
from autotune.kernels.moe_dispatch_gemm.launch import KERNELS, GemmScratch, Tensors, multiply
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.machine import Machine
from autotune.search_spaces.moe_dispatch_gemm import SPACE, default_config, first_configs
from autotune.search_spaces.moe_exchange import OWN
from autotune.workloads.comparison import distance, drawn, drawn_scales, rounded_gated, rounded_product
from autotune.workloads.experts import (
    LIBRARY_WAYS,
    DispatchedOperation,
    check_experts,
    check_routing,
    default_sizes,
    grouped_operands,
    is_transposed,
)
from autotune.workloads.gemm import OF_A_LIBRARY
from autotune.workloads.interface import Run
from autotune.workloads.launched import LaunchedWorkload, Operands, eager_and_graph
from autotune.workloads.tolerance import Error, Tolerance


class MoeDispatchGemmOperation(DispatchedOperation[MoeDispatchGemm, Tensors, GemmScratch]):
    """The tensors of one rank, and the config prepared last."""

    def __init__(self, problem: MoeDispatchGemm, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Inputs are undefined until ``refresh``."""
        super().__init__(KERNELS, problem, heap, machine, spin_limit)

    def draw_weights(self, seed: int) -> None:
        """B differs from expert to expert; scaled so that gate and up are of about 1, whatever the depth."""
        b, scale_b = self._tensors.b, self._tensors.scale_b
        b.copy_(drawn(tuple(b.shape), b.dtype, self._heap.device, seed * 1000 + 700 + self._heap.rank))
        if scale_b is not None:
            scale_b.copy_(drawn_scales(tuple(scale_b.shape), self._heap.device, seed * 1000 + 800 + self._heap.rank))
        if self._problem.gated:
            (b if scale_b is None else scale_b).mul_(self._problem.hidden**-0.5)

    def error_of_rows(self, rows: Sequence[torch.Tensor], number: int, places: torch.Tensor, plan: Plan) -> Error:
        """Against the products in fp32, or fp64 for fp32."""
        tokens = self.drawn.tokens(number, places)
        wide = torch.float64 if self._problem.dtype == "fp32" else torch.float32
        bounds = plan.offsets.tolist()
        parts = [
            tokens[begin:end].to(wide) @ self._expert(expert).to(wide)
            for expert, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False))
        ]
        return distance(rows[0], self._after(torch.cat(parts)))

    def _expert(self, expert: int) -> torch.Tensor:
        """B of a local expert, of fp8 times its scales."""
        b, scale_b = self._tensors.b, self._tensors.scale_b
        return b[expert] if scale_b is None else dequantised(b[expert], scale_b[expert])

    def _after(self, product: torch.Tensor) -> torch.Tensor:
        """What the epilogue makes of a product."""
        problem = self._problem
        if not problem.gated:
            return product
        gate, up = product.chunk(2, dim=1) if problem.halves else (product[:, 0::2], product[:, 1::2])
        return torch.nn.functional.silu(gate) * up

    def parts(self) -> dict[str, Run]:
        """An even all-to-all, and the library's grouped GEMM of as many rows for each expert."""
        problem, b = self._problem, self._tensors.b
        count = problem.tokens * problem.top_k
        ends = [expert * count // problem.local_experts for expert in range(problem.local_experts + 1)]
        offsets = torch.tensor(ends, dtype=torch.int32, device=b.device)
        rows = torch.zeros((count, problem.hidden), dtype=self._tensors.x.dtype, device=b.device)
        c, scaling = self._tensors.c.new_empty((count, problem.width)), None
        if self._tensors.scale_b is not None:
            of_rows = torch.ones((count, problem.row_scales), device=b.device)
            scaling = Scaling(of_rows, self._tensors.scale_b, problem.scales, problem.fast_accum)
        return {"all_to_all": self.exchange(), "gemm": lambda: multiply(problem, rows, b, offsets, c, scaling)}


class MoeDispatchGemmWorkload(LaunchedWorkload):
    """Joins problem, kernels and space."""

    problem_type = MoeDispatchGemm
    space = SPACE
    kernels = KERNELS
    options = ("experts", "epilogue", "gate_up", "routing", "exponent", "fast_accum", "histogram")

    def default_problem(self, machine: Machine, world_size: int) -> MoeDispatchGemm:
        return MoeDispatchGemm(**default_sizes(machine, world_size), width=32 if machine.is_interpreter else 2048)

    def default_config(self, problem: MoeDispatchGemm, machine: Machine) -> Config:
        return default_config(problem, machine)

    def first_configs(self, problem: MoeDispatchGemm, machine: Machine) -> list[Config]:
        return first_configs(problem, machine)

    def baselines(self, problem: MoeDispatchGemm, machine: Machine) -> dict[str, Config]:
        return eager_and_graph(SPACE, LIBRARY_WAYS, problem, machine)

    def tolerance_of(self, problem: MoeDispatchGemm, config: Config, machine: Machine) -> Tolerance:
        """The result alone is rounded, or also what the library's GEMM rounds on its way there."""
        ours, elements = config["mode"] in OWN, problem.tokens * problem.top_k * problem.width
        if problem.gated:
            return rounded_gated(problem, 0.0 if ours else 1.0 + OF_A_LIBRARY, elements, machine)
        return rounded_product(problem, 1.0 if ours else 1.0 + OF_A_LIBRARY, elements, machine)

    def heap_bytes(self, problem: MoeDispatchGemm) -> int:
        """The largest scratch, and the copy of x that peers read."""
        return super().heap_bytes(problem) + problem.tokens * problem.hidden * problem.element_size

    def operation(
        self, problem: MoeDispatchGemm, heap: SymmetricHeap, machine: Machine, spin_limit: int
    ) -> MoeDispatchGemmOperation:
        return MoeDispatchGemmOperation(problem, heap, machine, spin_limit)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> MoeDispatchGemm:
        """X is a contiguous matrix, ids and gates have a row for each of its rows, and B is this rank's experts'."""
        x, ids, gates, b, *scales = operands
        assert x is not None and ids is not None and gates is not None and b is not None
        given = dict(zip(self.options, options, strict=True))
        check_routing(x, ids, gates)
        transposed = is_transposed("x", x, b, ("tokens", "hidden", "columns"))
        check_experts("x", x, b, world_size, given["experts"])
        dtype, kind = grouped_operands(x, b, scales)
        columns = b.shape[2] // (1 if given["epilogue"] == "none" else 2)
        return MoeDispatchGemm(
            tokens=x.shape[0], hidden=x.shape[1], top_k=ids.shape[1], width=columns,
            b_order="nk" if transposed else "kn", **given, dtype=dtype, scales=kind, world_size=world_size,
        )  # fmt: skip

    def out_shapes(self, world_size: int, operands: Operands, options: Sequence[Any]) -> list[tuple[int, ...]]:
        problem = self.problem_of(world_size, operands, options)
        capacity = problem.capacity
        return [(capacity, problem.width), (problem.local_experts + 1,), (capacity,), (capacity,)]

    def out_dtypes(self, operands: Operands, options: Sequence[Any]) -> list[torch.dtype]:
        x = operands[0]
        assert x is not None
        result = torch.bfloat16 if x.element_size() == 1 else x.dtype
        return [result, torch.int32, torch.int32, torch.float32]


WORKLOAD = MoeDispatchGemmWorkload()
