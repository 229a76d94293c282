"""All-gather + GEMM as a workload: C = all_gather(A) @ B (+ bias), then maybe SwiGLU."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.kernels.all_gather_gemm.activation import reference
from autotune.kernels.all_gather_gemm.launch import KERNELS, QUANTISING, RETURNING
from autotune.kernels.all_gather_gemm.library import as_bytes, gather
from autotune.kernels.all_gather_gemm.modes import Ours
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.specialized_modes import WarpSpecialized
from autotune.kernels.gemm.library import dequantised, multiply
from autotune.kernels.gemm.problem import blocks
from autotune.kernels.launching.contract import Kernels
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads.comparison import distance, farthest, rounded_gated, rounded_product
from autotune.workloads.gemm import FACTORS, GemmOperation, GemmWorkload
from autotune.workloads.interface import Run
from autotune.workloads.launched import Operands, OutForm
from autotune.workloads.moded import ModedWorkload
from autotune.workloads.tolerance import Error, Tolerance


class AllGatherGemmOperation(GemmOperation[AllGatherGemm, Any]):
    """Operands lie in ordinary memory, A's shard on the heap where the problem says so."""

    def draw_operands(self, seed: int) -> torch.Tensor:
        """Every rank draws every rank's shard, and multiplies the whole A by its own B."""
        tensors, rank, problem = self._tensors, self._heap.rank, self._problem
        ranks = range(self._heap.world_size)
        shards = [self.draw_a(seed * 1000 + other) for other in ranks]
        # Scales that do not travel are the same on every rank.
        scales = [
            self.draw_scales(tensors.scale_a, seed * 1000 + 250 + other * problem.gathers_scales) for other in ranks
        ]
        b, scale_b = self.draw_b(seed * 1000 + 500 + rank), self.draw_scales(tensors.scale_b, seed * 1000 + 600 + rank)
        depth = problem.k
        if problem.gated:
            # Gates of about 1, where an activation shows; exact, as it is a power of two.
            factor = 2.0 ** -round(math.log2(depth) / 2)
            (b if scale_b is None else scale_b).mul_(factor)
            depth = max(1, round(depth * factor * factor))
        self.take(shards[rank], scales[rank], b, scale_b)
        self.draw_added(tensors.bias, seed * 1000 + 750 + rank, depth)
        wide = [self.widened(shard, scale) for shard, scale in zip(shards, scales, strict=True)]
        along = 0 if problem.rows_layout else 1
        product: torch.Tensor = torch.cat(wide, dim=along) @ self.widened(b, scale_b)
        if problem.gathered:
            self._whole = torch.cat([shard.to(torch.float32) for shard in shards], dim=along)
        return product

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The larger one of C's and the gathered A's, where that is an output; of an fp8 C with its scales."""
        expected = [self.expected(number)]
        if self._problem.quantised:
            return distance(dequantised(*outputs), expected[0])
        if self._problem.gathered:
            expected.append(self._whole * FACTORS[number])
        return farthest(outputs, expected)

    def expected(self, number: int = 0) -> torch.Tensor:
        """The product with the epilogue applied."""
        product = super().expected(number)
        return reference(product, self._problem) if self._problem.gated else product

    def parts(self) -> dict[str, Run]:
        """The library's all-gather of A alone, and its GEMM alone, without what follows."""
        tensors, problem, device = self._tensors, self._problem, self._heap.device
        whole = torch.randn((problem.m, problem.k), device=device).to(tensors.a.dtype)
        scales = tensors.scale_a
        shards = [as_bytes(tensors.a)]
        if scales is not None and problem.gathers_scales:
            shards.append(as_bytes(scales))
            scales = torch.ones((problem.m, problem.scale_columns), device=device)
        gathered = [each.new_empty((problem.world_size * len(each), each.shape[1])) for each in shards]
        product = tensors.c
        if problem.gated:
            product = product.new_empty((problem.m, problem.n_local), dtype=TORCH_DTYPES[problem.result_dtype])
        return {
            "all_gather": lambda: gather(gathered, shards),
            "gemm": lambda: multiply(problem, whole, scales, tensors, product, tensors.bias),
        }


DETOUR = 1.4
"""Times as long as otherwise takes a push whose own rows go through the inbox: 508 µs at m=2046, 357 at 2048 (N=28672
K=4096, 2 H100, 2026-11-25).
"""


class AllGatherGemmWorkload(ModedWorkload, GemmWorkload):
    problem_type = AllGatherGemm
    operation_type = AllGatherGemmOperation
    kernels = KERNELS
    options = ("layout", "in_place", "out_dtype", "fast_accum", "epilogue", "gate_up")

    def kernels_of(self, problem: AllGatherGemm) -> Kernels[Any, Any, Any, Any]:
        return RETURNING if problem.gathered else QUANTISING if problem.quantised else self.kernels

    def default_problem(self, machine: Machine, world_size: int) -> AllGatherGemm:
        """Llama-70B's MLP up-projection at 4096 tokens; a toy of the same form under the interpreter."""
        if machine.is_interpreter:
            return AllGatherGemm(m=32 * world_size, n=64 * world_size, k=128, world_size=world_size)
        return AllGatherGemm(m=4096, n=28672, k=8192, world_size=world_size)

    def tiled(self, problem: AllGatherGemm, config: Config) -> tuple[int, int]:
        mode = KERNELS.modes.of(config)
        ours = isinstance(mode, Ours) and problem.tiled_by_shard(mode.block_m, mode.split_k)
        by_shard = ours or (isinstance(mode, WarpSpecialized) and not mode.across_shards)
        return (problem.shard[0], problem.world_size) if by_shard else super().tiled(problem, config)

    def waste(self, config: Config, task: Task[AllGatherGemm]) -> float:
        """A rank's own rows take a detour through the inbox, like its peers', where tiles have rows of two owners, in
        layout k, and where programs share a tile.
        """
        mode = KERNELS.modes.of(config)
        detour = isinstance(mode, Ours) and mode.split_k == 1 and not task.problem.tiled_by_shard(mode.block_m)
        return super().waste(config, task) * (DETOUR if detour and task.problem.rows_layout else 1.0)

    def tolerance_of(self, task: Task[AllGatherGemm], config: Config) -> Tolerance:
        problem = task.problem
        roundings = self.kernels.way_of(config).roundings(problem)
        if problem.gated:
            elements = problem.m * problem.columns
            return rounded_gated(task, roundings, elements, quantised=problem.quantised)
        return rounded_product(task, roundings, problem.m * problem.n_local)

    def heap_bytes(self, problem: AllGatherGemm) -> int:
        """A's shard and the largest scratch."""
        rows, width = problem.shard
        return rows * width * problem.element_size + super().heap_bytes(problem)

    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Mapping[str, Any]) -> dict[str, int]:
        """The shard's sizes make A's by the layout."""
        m, k = a.shape
        m, k = (m * world_size, k) if options["layout"] == "rows" else (m, k * world_size)
        return {"m": m, "n": b.shape[1] * world_size, "k": k}

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, int]:
        (a, b), layout = operands[:2], options[0]
        gated = dict(zip(self.options, options, strict=True))["epilogue"] != "none"
        return a.shape[0] * world_size if layout == "rows" else a.shape[0], b.shape[1] // (2 if gated else 1)


class ReturningWorkload(AllGatherGemmWorkload):
    """All-gather + GEMM that returns the gathered A, too."""

    kernels = RETURNING

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Any:
        problem: Any = super().problem_of(world_size, operands, options)
        return dataclasses.replace(problem, gathered=True)

    def out_forms(self, world_size: int, operands: Operands, options: Sequence[Any]) -> list[OutForm]:
        (a, b), c = operands[:2], self.out_shape(world_size, operands, options)
        return [(c, self.out_dtype(operands, options)), ((c[0], b.shape[0]), a.dtype)]


class QuantisingWorkload(AllGatherGemmWorkload):
    """All-gather + GEMM that returns C as fp8, with its scales."""

    kernels = QUANTISING

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Any:
        problem: Any = super().problem_of(world_size, operands, options)
        return dataclasses.replace(problem, quantised=True)

    def out_forms(self, world_size: int, operands: Operands, options: Sequence[Any]) -> list[OutForm]:
        rows, columns = self.out_shape(world_size, operands, options)
        fnuz = OPERAND_DTYPES["fp8_fnuz"]
        fp8 = fnuz if operands[0].dtype == fnuz else OPERAND_DTYPES["fp8"]
        return [((rows, columns), fp8), ((rows, blocks(columns)), torch.float32)]


WORKLOAD = AllGatherGemmWorkload()
QUANTISING_C = QuantisingWorkload()
RETURNING_A = ReturningWorkload()
