"""The problem: total = all_reduce(A @ B) (+ bias) + residual, normed = rms_norm(total) * weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autotune.kernels.all_reduce_norm.problem import QUANTISED, QUANTISED_HELP, AllReduceNorm
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.problem import choice, number


@dataclass(frozen=True, kw_only=True)
class GemmAllReduceNorm(GemmAllReduce):
    """total [m, n] = sum over ranks of A @ B (+ bias [n], once) + residual; normed = total / rms(total) * weight [n].

    GEMM + all-reduce, and what follows it in a transformer, on every rank; A and B as there. rms is the root of a row's
    mean square + ``eps``. Residual, weight and both results have the result's type. ``quantised``: as in all-reduce +
    norm.
    """

    workload = "gemm_all_reduce_norm"
    computes = "all_reduce(A @ B) + residual, then RMSNorm"

    residual: ClassVar[bool] = False  # type: ignore[misc]  # what follows the sum always has one
    wire: ClassVar[str] = "auto"  # type: ignore[misc]
    eps: float = number("added to a row's mean square", 1e-6)
    quantised: str = choice(QUANTISED_HELP, QUANTISED, "none")

    def check(self) -> None:
        """Raise InvalidProblem if the ranks cannot share K evenly, or a program cannot hold a row."""
        super().check()
        self.norm.check()

    @property
    def norm(self) -> AllReduceNorm:
        """The problem that is left after the GEMM."""
        return AllReduceNorm(
            m=self.m, n=self.n, eps=self.eps, quantised=self.quantised, dtype=self.result_dtype,
            world_size=self.world_size,
        )  # fmt: skip
