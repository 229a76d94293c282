"""Workloads of a user's with a small fault: GEMM + reduce-scatter without the bias, or without the last of K."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.config import Config
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.workloads.built_in.gemm_reduce_scatter import GemmReduceScatterOperation, GemmReduceScatterWorkload
from autotune.workloads.interface import Run


class BiaslessOperation(GemmReduceScatterOperation):
    def prepare(self, config: Config) -> Run:
        run, tensors = super().prepare(config), self._tensors

        def biasless() -> None:
            run()
            tensors.c.sub_(tensors.bias)

        return biasless


class LastlessOperation(GemmReduceScatterOperation):
    def prepare(self, config: Config) -> Run:
        run, a = super().prepare(config), self._tensors.a

        def lastless() -> None:
            last = a[:, -1].clone()
            a[:, -1] = 0
            run()
            a[:, -1] = last

        return lastless


@dataclass(frozen=True, kw_only=True)
class BiaslessProblem(GemmReduceScatter):
    workload = "biasless"


@dataclass(frozen=True, kw_only=True)
class LastlessProblem(GemmReduceScatter):
    workload = "lastless"


class Biasless(GemmReduceScatterWorkload):
    name, problem_type, operation_type = "biasless", BiaslessProblem, BiaslessOperation


class Lastless(GemmReduceScatterWorkload):
    name, problem_type, operation_type = "lastless", LastlessProblem, LastlessOperation
