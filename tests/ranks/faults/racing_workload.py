"""A user's workload with a race: all-gather + GEMM whose kernels read what their peers push without waiting for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.primitives import transfer
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmWorkload


@triton.jit
def pass_by(arrivals, source, first, last, rows, transfer_rows, target, peers, PROXY_FENCE: tl.constexpr):
    return (target * 0).to(tl.int32)


@triton.jit
def pass_each_by(
    arrivals, first_source, last_source, apart, first, last, rows, transfer_rows, target, peers, WORLD: tl.constexpr,
    PROXY_FENCE: tl.constexpr,
):  # fmt: skip
    return (target * 0).to(tl.int32)


@dataclass(frozen=True, kw_only=True)
class Racing(AllGatherGemm):
    workload = "racing"


class RacingWorkload(AllGatherGemmWorkload):
    name, problem_type = "racing", Racing

    def operation(self, *arguments: Any) -> Any:
        """Set up on this rank, whose process is the gang's: nobody else's kernels lose their waits."""
        transfer.wait_for_rows, transfer.wait_for_rows_of_each = pass_by, pass_each_by
        return super().operation(*arguments)


WORKLOAD = RacingWorkload()
