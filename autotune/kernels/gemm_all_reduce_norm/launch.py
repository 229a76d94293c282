"""Launching GEMM + all-reduce + residual + RMSNorm: two launches, of which either may be ours or the library's.

Modes: ``bsp`` calls the library for everything; ``library_collective`` its GEMM and its all-reduce, then our sum and
norm; ``own_collective`` its GEMM, then our all-reduce with the norm; ``one_shot`` and ``two_shot`` our GEMM with the
all-reduce, then our sum and norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_reduce_norm import launch as norming
from autotune.kernels.gemm.library import multiply
from autotune.kernels.gemm_all_reduce import launch as reducing
from autotune.kernels.gemm_all_reduce.launch import GemmAllReduceKnobs
from autotune.kernels.gemm_all_reduce.library import bulk_synchronous
from autotune.kernels.gemm_all_reduce.scratch import Scratch as ReduceScratch
from autotune.kernels.gemm_all_reduce_norm.problem import GemmAllReduceNorm
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.gemm import SummedTensors, readable
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.plan import Launch, in_order
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.machine import Machine


@dataclass(frozen=True, kw_only=True)
class NormedTensors(SummedTensors):
    """GEMM + all-reduce's, with what follows: ``c`` is total. ``residual`` and ``normed`` [m, n], ``weight`` [n]."""

    residual: torch.Tensor
    weight: torch.Tensor
    normed: torch.Tensor

    def norming(self, summed: torch.Tensor) -> norming.Tensors:
        """The norm's operands and results, where ``summed`` is what it reads."""
        return norming.Tensors(summed, self.residual, self.weight, self.normed, self.c)


@dataclass(frozen=True)
class Scratch:
    """One config's memory between launches: that of the part whose all-reduce is ours."""

    reduce: ReduceScratch | None
    norm: norming.Scratch | None
    part: torch.Tensor
    """[m, n], ``own_collective``: this rank's product."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        for each in (self.reduce, self.norm):
            if each is not None:
                each.poison()
        self.part.fill_(torch.nan)


@dataclass(frozen=True, kw_only=True)
class GemmAllReduceNormKnobs(GemmAllReduceKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    norm_rows: int = 1
    norm_warps: int = 4
    senders: int = 0

    @property
    def norm(self) -> norming.NormKnobs:
        """Knobs of the second launch."""
        return norming.NormKnobs(
            mode=self.exchange if self.mode == "own_collective" else "library_collective", norm_rows=self.norm_rows,
            norm_warps=self.norm_warps, senders=self.senders, protocol=self.protocol,
        )  # fmt: skip


NormedCall = Call[GemmAllReduceNorm, GemmAllReduceNormKnobs, NormedTensors, Scratch]


class GemmAllReduceNormKernels(Kernels[GemmAllReduceNorm, GemmAllReduceNormKnobs, NormedTensors, Scratch]):
    knobs = GemmAllReduceNormKnobs
    tensors_type = NormedTensors
    results = ("normed", "c")

    def tensors(self, problem: GemmAllReduceNorm, shared: Allocate, own: Allocate) -> NormedTensors:
        shape, dtype = (problem.m, problem.n), TORCH_DTYPES[problem.result_dtype]
        return NormedTensors(
            **vars(reducing.KERNELS.tensors(problem, shared, own))
            | {"residual": own(shape, dtype), "weight": own(shape[1:], dtype), "normed": own(shape, dtype)},
        )

    def scratch(
        self, problem: GemmAllReduceNorm, knobs: GemmAllReduceNormKnobs, machine: Machine, shared: Allocate,
        own: Allocate,
    ) -> Scratch | None:  # fmt: skip
        if knobs.mode == "bsp":
            return None
        ours = knobs.mode in reducing.MODES
        rows = problem.m if knobs.mode == "own_collective" else 0
        return Scratch(
            reduce=reducing.KERNELS.scratch(problem, knobs, machine, shared, own) if ours else None,
            norm=None if ours else norming.KERNELS.scratch(problem.norm, knobs.norm, machine, shared, own),
            part=own((rows, problem.n), TORCH_DTYPES[problem.result_dtype]),
        )

    def scratch_bytes(self, problem: GemmAllReduceNorm) -> int:
        return max(reducing.KERNELS.scratch_bytes(problem), norming.KERNELS.scratch_bytes(problem.norm))

    def plan(self, call: NormedCall) -> list[Launch]:
        problem, knobs, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        if knobs.mode == "own_collective":
            assert scratch.norm is not None
            of_norm = tensors.norming(scratch.part)
            return norming.KERNELS.plan(_call(call, problem.norm, knobs.norm, of_norm, scratch.norm))
        norm = norming.norm_launch(problem.norm, knobs.norm, tensors.norming(tensors.c), tensors.c)
        if knobs.mode == "library_collective":
            return [norm]
        assert scratch.reduce is not None
        return [*reducing.KERNELS.plan(_call(call, problem, knobs, tensors, scratch.reduce)), norm]

    def run(self, call: NormedCall, launches: list[Launch], heap: SymmetricHeap) -> Run:
        problem, knobs, tensors = call.problem, call.knobs, call.tensors
        ours = in_order(launches)
        if knobs.mode == "own_collective":
            bias = tensors.bias if call.rank == 0 else None

            def multiply_then_reduce() -> None:
                multiply(problem, tensors.a, tensors.scale_a, tensors, call.scratch.part, bias)
                ours()

            return multiply_then_reduce
        if knobs.mode == "library_collective":
            return _after(bulk_synchronous(problem, tensors, call.rank, call.group), ours, knobs)
        return ours

    def has_collective(self, knobs: GemmAllReduceNormKnobs) -> bool:
        return knobs.mode == "library_collective" or super().has_collective(knobs)

    def readable(
        self, problem: GemmAllReduceNorm, knobs: GemmAllReduceNormKnobs, name: str, operand: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        return readable(name, operand, apart=knobs.apart)

    def library(self, call: Call[GemmAllReduceNorm, GemmAllReduceNormKnobs, NormedTensors, None]) -> Run:
        """The library's GEMM and all-reduce, then its sum and its norm."""
        tensors, problem = call.tensors, call.problem

        def norm() -> None:
            norming.library_norm(problem.norm, tensors.norming(tensors.c), tensors.c)

        return _after(bulk_synchronous(problem, tensors, call.rank, call.group), norm, call.knobs)


def _call(call: NormedCall, problem: Any, knobs: Any, tensors: Any, scratch: Any) -> Any:
    return replace(call, problem=problem, knobs=knobs, tensors=tensors, scratch=scratch)


def _after(first: Run, then: Run, knobs: GemmAllReduceNormKnobs) -> Run:
    def run() -> None:
        first()
        then()

    return graphed(run) if knobs.launch == "graph" else run


KERNELS = GemmAllReduceNormKernels()
