"""Grouped GEMM and combine of its rows at their tokens' ranks as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.moe.library import Scaling, grouped_product
from autotune.kernels.moe_gemm_combine.launch import KERNELS, GemmScratch, Tensors
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.machine import Machine
from autotune.search_spaces.moe_combine import OWN
from autotune.search_spaces.moe_gemm_combine import SPACE, default_config, first_configs
from autotune.workloads.combined import (
    LIBRARY_WAYS,
    DrawnRows,
    combined_error,
    combined_tolerance,
    exchange_and_sum,
    plan_of_a_call,
)
from autotune.workloads.comparison import drawn, drawn_deep, drawn_scales, with_lost
from autotune.workloads.experts import DrawnSets, check_experts, default_sizes, grouped_operands, is_transposed
from autotune.workloads.gemm import OF_A_LIBRARY
from autotune.workloads.input_sets import InputSets, poison
from autotune.workloads.interface import Run
from autotune.workloads.launched import LaunchedOperation, LaunchedWorkload, Operands, eager_and_graph
from autotune.workloads.tolerance import Error, Tolerance


class MoeGemmCombineOperation(LaunchedOperation[MoeGemmCombine, Tensors, GemmScratch]):
    """The tensors of one rank, and the config prepared last."""

    def __init__(self, problem: MoeGemmCombine, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Inputs are undefined until ``refresh``."""
        super().__init__(KERNELS, problem, heap, machine, spin_limit)

    def refresh(self, seed: int) -> None:
        """Every rank draws every rank's rows, routing and B, so that the reference needs no communication."""
        self._drawn = DrawnRows(self._problem, self._heap, seed, self._problem.width, draw=drawn_deep)
        self._seed = seed
        first = self._heap.rank * self._problem.local_experts
        for local, b in enumerate(self._tensors.b):
            b.copy_(self._expert(first + local))
            if self._tensors.scale_b is not None:
                self._tensors.scale_b[local].copy_(self._scales(first + local))
        self.put(DrawnRows.PLAIN)
        poison(self._tensors.out)
        self.poison()

    def _expert(self, expert: int) -> torch.Tensor:
        """B of an expert of any rank."""
        b = self._tensors.b
        return drawn(tuple(b.shape[1:]), b.dtype, self._heap.device, self._seed * 1000 + 600 + 1_000_003 * expert)

    def _scales(self, expert: int) -> torch.Tensor:
        """Those of an expert's B."""
        like = self._tensors.scale_b
        assert like is not None
        seed = self._seed * 1000 + 800 + 1_000_003 * expert
        return drawn_scales(tuple(like.shape[1:]), self._heap.device, seed)

    def _wide(self, expert: int) -> torch.Tensor:
        """B of an expert as the reference takes it."""
        b = self._expert(expert)
        return dequantised(b, self._scales(expert)) if self._problem.scaled else b

    def put(self, number: int) -> None:
        """Enqueue what makes one of the drawn sets the inputs; B stays."""
        self._drawn.put(number, self._tensors.a, self._tensors)
        self._number = number

    def inputs(self) -> Sequence[torch.Tensor]:
        operands = (getattr(self._tensors, name) for name in KERNELS.operands)
        return [each for each in operands if each is not None]

    def outputs(self) -> Sequence[torch.Tensor]:
        return [self._tensors.out]

    def input_sets(self, seed: int) -> InputSets:
        """The same rows times a factor, under another routing each."""
        self.refresh(seed)
        return DrawnSets(self, DrawnRows.COUNT)

    def error(self) -> Error:
        return self.error_of(self.outputs(), self._number)

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The distance from the sums over experts of gates and factors times a token's vector @ the expert's B."""
        weights, exists = self._drawn.weights(number)
        wide = torch.float64 if self._problem.dtype == "fp32" else torch.float32
        own, ids = self._drawn.own(number).to(wide), self._drawn.ids(number)
        expected = torch.zeros(outputs[0].shape, dtype=wide, device=own.device)
        for expert in ids[ids >= 0].unique().tolist():
            token, place = (ids == expert).nonzero(as_tuple=True)
            product = own[token] @ self._wide(expert).to(wide)
            expected.index_add_(0, token, product * weights[token, place, None].to(wide))
        return combined_error(outputs[0], expected, exists)

    def parts(self) -> dict[str, Run]:
        """The library's grouped GEMM of as many rows as there are on average, and what combines them."""
        problem, tensors = self._problem, self._tensors
        count = problem.tokens * problem.top_k
        ends = [expert * count // problem.local_experts for expert in range(problem.local_experts + 1)]
        offsets = torch.tensor(ends, dtype=torch.int32, device=tensors.b.device)
        rows = torch.zeros((count, problem.width), dtype=tensors.a.dtype, device=tensors.b.device)
        scaling = None
        if tensors.scale_b is not None:
            of_rows = torch.ones((count, problem.row_scales), device=tensors.b.device)
            scaling = Scaling(of_rows, tensors.scale_b, problem.scales, problem.fast_accum)

        def gemm() -> None:
            grouped_product(rows, tensors.b, offsets, scaling)

        return {"gemm": gemm, **exchange_and_sum(problem, tensors.out)}


class MoeGemmCombineWorkload(LaunchedWorkload):
    """Joins problem, kernels and space."""

    problem_type = MoeGemmCombine
    space = SPACE
    kernels = KERNELS
    options = ("routing", "exponent", "deterministic", "fast_accum", "histogram")

    def default_problem(self, machine: Machine, world_size: int) -> MoeGemmCombine:
        return MoeGemmCombine(**default_sizes(machine, world_size), width=32 if machine.is_interpreter else 2048)

    def default_config(self, problem: MoeGemmCombine, machine: Machine) -> Config:
        return default_config(problem, machine)

    def first_configs(self, problem: MoeGemmCombine, machine: Machine) -> list[Config]:
        return first_configs(problem, machine)

    def baselines(self, problem: MoeGemmCombine, machine: Machine) -> dict[str, Config]:
        return eager_and_graph(SPACE, LIBRARY_WAYS, problem, machine)

    def tolerance_of(self, problem: MoeGemmCombine, config: Config, machine: Machine) -> Tolerance:
        """Products are rounded too, and by the library's GEMM maybe more than once."""
        of_rows = 1.0 if config["mode"] in OWN else 1.0 + OF_A_LIBRARY
        found = combined_tolerance(problem, config["mode"] == "bsp", problem.width, machine, of_rows)
        return with_lost(problem, found, machine)

    def operation(
        self, problem: MoeGemmCombine, heap: SymmetricHeap, machine: Machine, spin_limit: int
    ) -> MoeGemmCombineOperation:
        return MoeGemmCombineOperation(problem, heap, machine, spin_limit)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> MoeGemmCombine:
        """A is a contiguous matrix, laid out by the plan of the tokens with these ids; B is this rank's experts'."""
        a, b, offsets, pairs, gates, ids, *scales = operands
        assert a is not None and b is not None and ids is not None
        plan = [each for each in (offsets, pairs, gates) if each is not None]
        transposed = is_transposed("a", a, b, ("capacity", "width", "hidden"))
        given: dict[str, Any] = dict(zip(self.options, options, strict=True))
        given |= plan_of_a_call(world_size, a, plan, ids)
        check_experts("a", a, b, world_size, given["experts"])
        dtype, kind = grouped_operands(a, b, scales)
        return MoeGemmCombine(
            hidden=b.shape[2], width=a.shape[1], b_order="nk" if transposed else "kn", **given, dtype=dtype,
            scales=kind, world_size=world_size,
        )  # fmt: skip

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        """A row for each token of this rank."""
        b, ids = operands[1], operands[5]
        assert b is not None and ids is not None
        return (ids.shape[0], b.shape[2])

    def out_dtype(self, operands: Operands, options: Sequence[Any]) -> torch.dtype:
        """A's, or bf16 of fp8."""
        a = operands[0]
        assert a is not None
        return torch.bfloat16 if a.element_size() == 1 else a.dtype


WORKLOAD = MoeGemmCombineWorkload()
