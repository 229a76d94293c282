"""One kernel of ours: rows travel to every rank or to their owner, are summed, and normed."""

from __future__ import annotations

from typing import Any

from autotune.kernels.all_reduce_norm import device
from autotune.kernels.all_reduce_norm.library import OF_THE_NORM, NormCall, Tensors, blocks, norm_arguments
from autotune.kernels.all_reduce_norm.modes import NormTask
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.kernels.gemm_all_reduce.exchange import SHOTS, Exchange
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import Way
from autotune.kernels.primitives.all_reduce import PROTOCOLS


class ExchangingWay(Way[AllReduceNorm, Any, Tensors, Exchange]):
    def scratch(self, task: NormTask, mode: Any, shared: Allocate, own: Allocate) -> Exchange:
        problem, dtype = task.problem, TORCH_DTYPES[task.problem.dtype]
        block = (mode.norm_rows, problem.n)
        return Exchange.of(mode, problem.world_size, dtype, blocks(problem, mode), block, shared)

    def launches(self, call: NormCall) -> list[Launch]:
        problem, mode, scratch = call.problem, call.knobs, call.scratch
        arguments = {
            **norm_arguments(problem, mode, call.tensors), **call.common(), "inbox": scratch.inbox,
            "sums": scratch.results, "arrivals": scratch.arrivals, "returns": scratch.returns,
            "MODE": SHOTS[mode.exchange].value, "PROTOCOL": PROTOCOLS[mode.protocol].value,
            "SENDERS": mode.senders,
        }  # fmt: skip
        programs = blocks(problem, mode) * (mode.senders + 1)
        return [Launch(device.all_reduce_norm_kernel, programs, arguments, {"num_warps": mode.norm_warps})]

    def roundings(self, problem: AllReduceNorm) -> float:
        """Each part, and the sum; then those of the norm."""
        return 2.0 + OF_THE_NORM
