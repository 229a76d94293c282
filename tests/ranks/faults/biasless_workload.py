"""Workloads of a user's with a small fault: GEMM + reduce-scatter without the bias, or without the last of K."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.config import Config
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.workloads.built_in.gemm_reduce_scatter import GemmReduceScatterOperation, GemmReduceScatterWorkload
from autotune.workloads.interface import Run


class Losing(GemmReduceScatterOperation):
    """Takes the bias away again, or multiplies without the last column of A."""

    def prepare(self, config: Config) -> Run:
        run, tensors = super().prepare(config), self._tensors

        def losing() -> None:
            last = tensors.a[:, -1].clone()
            if self._problem.workload == "lastless":
                tensors.a[:, -1] = 0
            run()
            tensors.a[:, -1] = last
            if self._problem.workload == "biasless":
                tensors.c.sub_(tensors.bias)

        return losing


@dataclass(frozen=True, kw_only=True)
class BiaslessProblem(GemmReduceScatter):
    workload = "biasless"


@dataclass(frozen=True, kw_only=True)
class LastlessProblem(GemmReduceScatter):
    workload = "lastless"


class Biasless(GemmReduceScatterWorkload):
    name, problem_type, operation_type = "biasless", BiaslessProblem, Losing


class Lastless(GemmReduceScatterWorkload):
    name, problem_type, operation_type = "lastless", LastlessProblem, Losing
