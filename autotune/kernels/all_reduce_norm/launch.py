"""All-reduce + residual + RMSNorm in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

import torch

from autotune.kernels.all_reduce_norm.modes import MODES, Library, LibraryCollective, OneShot, TwoShot
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.kernels.all_reduce_norm.ways import (
    AddNorm,
    AllReduce,
    ExchangingWay,
    LibraryNorm,
    QuantisedTensors,
    Tensors,
)
from autotune.kernels.gemm_all_reduce.exchange import SHOTS
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES, SLOTS
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import ModeKernels, Then
from autotune.sizes import round_up

LARGEST_BLOCK = 16


class AllReduceNormKernels(ModeKernels[AllReduceNorm, Tensors]):
    modes = MODES
    ways = {
        Library: Then(AllReduce(), LibraryNorm()), LibraryCollective: Then(AllReduce(), AddNorm()),
        OneShot: ExchangingWay(), TwoShot: ExchangingWay(),
    }  # fmt: skip
    tensors_type = Tensors
    results = ("normed", "total")

    def tensors(self, problem: AllReduceNorm, shared: Allocate, own: Allocate) -> Tensors:
        shape, dtype = (problem.m, problem.n), TORCH_DTYPES[problem.dtype]
        operands = own(shape, dtype), own(shape, dtype), own(shape[1:], dtype)
        if problem.quantised == "none":
            return Tensors(*operands, own(shape, dtype), own(shape, dtype))
        scales = own((problem.m, problem.scale_columns), torch.float32)
        return QuantisedTensors(*operands, own(shape, OPERAND_DTYPES["fp8"]), own(shape, dtype), scales)

    def scratch_bytes(self, problem: AllReduceNorm) -> int:
        """The largest inbox that the space allows, and the counters of single rows."""
        block_m = min(LARGEST_BLOCK, round_up(problem.m))
        inboxes = (problem.inbox_bytes(shots, block_m, "ll") for shots in SHOTS)
        return min(max(inboxes), MOST_INBOX_BYTES) + 2 * SLOTS * problem.m * torch.int32.itemsize + (64 << 10)


KERNELS = AllReduceNormKernels()
QUANTISING = KERNELS.giving(QuantisedTensors, "normed", "total", "scales")
"""The norm in fp8, and its scales."""
