"""The ways: the library's all-reduce, then its sum and norm or one kernel of ours for both; or ours for all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import DTYPES, SCALE_BLOCK
from autotune.kernels.all_reduce_norm import device
from autotune.kernels.all_reduce_norm.modes import Norming, NormTask
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.kernels.gemm.library import OF_A_LIBRARY, ring
from autotune.kernels.gemm_all_reduce.exchange import SHOTS, Exchange, shots_of
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.kernels.launching.way import LibraryWay, Way
from autotune.kernels.primitives.all_reduce import PROTOCOLS
from autotune.sizes import round_up

OF_THE_NORM = 2.0
"""Roundings of a result beside those of the sum over ranks: of the total, of the norm."""


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and results, all contiguous: [m, n], and the weight [n]."""

    x: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor
    normed: torch.Tensor
    total: torch.Tensor

    def summed(self, problem: AllReduceNorm) -> torch.Tensor:
        """The tensor in which the library's all-reduce leaves its sum."""
        return self.x if problem.in_place else self.total


@dataclass(frozen=True)
class QuantisedTensors(Tensors):
    """Tensors whose norm is fp8."""

    scales: torch.Tensor
    """fp32 [m, 1] or [m, n / 128]: of the norm."""


NormCall = Call[AllReduceNorm, Any, Tensors, Any]


class AllReduce(LibraryWay[AllReduceNorm, Any, Tensors]):
    def eager(self, call: NormCall) -> Run:
        """It knows no result apart from its operand: X is copied unless it may be overwritten."""
        problem, x, summed = call.problem, call.tensors.x, call.tensors.summed(call.problem)

        def run() -> None:
            if not problem.in_place:
                summed.copy_(x)
            torch.distributed.all_reduce(summed, group=call.group)

        return run

    def roundings(self, problem: AllReduceNorm) -> float:
        return 2.0 + ring(problem.world_size) - OF_A_LIBRARY


class LibraryNorm(LibraryWay[AllReduceNorm, Any, Tensors]):
    def eager(self, call: NormCall) -> Run:
        problem, tensors, summed = call.problem, call.tensors, call.tensors.summed(call.problem)

        def run() -> None:
            torch.add(summed, tensors.residual, out=tensors.total)
            normed = torch.nn.functional.rms_norm(tensors.total, (problem.n,), tensors.weight, problem.eps)
            if isinstance(tensors, QuantisedTensors):
                quantise(normed, tensors.normed, tensors.scales)
            else:
                tensors.normed.copy_(normed)

        return run

    def roundings(self, problem: AllReduceNorm) -> float:
        return OF_THE_NORM


def quantise(matrix: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
    """A matrix [m, n] in fp8, ``out``, with ``scales`` [m, groups] of equal parts of its rows."""
    parts = matrix.float().unflatten(1, (scales.shape[1], -1))
    most = torch.finfo(out.dtype).max
    torch.div(parts.abs().amax(2), most, out=scales)
    scales.masked_fill_(scales == 0, 1.0)
    out.copy_((parts / scales[:, :, None]).clamp(-most, most).flatten(1))


class Nothing:
    """The scratch of a kernel that keeps nothing between calls."""

    def poison(self) -> None:
        pass


class AddNorm(Way[AllReduceNorm, Any, Tensors, Nothing]):
    def scratch(self, task: NormTask, mode: Norming, shared: Allocate, own: Allocate) -> Nothing:
        return Nothing()

    def launches(self, call: NormCall) -> list[Launch]:
        return [norm_launch(call.problem, call.knobs, call.tensors, call.tensors.summed(call.problem))]

    def roundings(self, problem: AllReduceNorm) -> float:
        return OF_THE_NORM


class ExchangingWay(Way[AllReduceNorm, Any, Tensors, Exchange]):
    """One kernel of ours: rows travel to every rank or to their owner, are summed, and normed."""

    def scratch(self, task: NormTask, mode: Any, shared: Allocate, own: Allocate) -> Exchange:
        problem, dtype = task.problem, TORCH_DTYPES[task.problem.dtype]
        block = (mode.norm_rows, problem.n)
        return Exchange.of(mode, problem.world_size, dtype, blocks(problem, mode), block, shared)

    def launches(self, call: NormCall) -> list[Launch]:
        problem, mode, scratch = call.problem, call.knobs, call.scratch
        arguments = {
            **norm_arguments(problem, mode, call.tensors), **call.common(), "inbox": scratch.inbox,
            "sums": scratch.results, "arrivals": scratch.arrivals, "returns": scratch.returns,
            "MODE": SHOTS[shots_of(mode)].value, "PROTOCOL": PROTOCOLS[mode.protocol].value,
            "SENDERS": mode.senders,
        }  # fmt: skip
        programs = blocks(problem, mode) * (mode.senders + 1)
        return [Launch(device.all_reduce_norm_kernel, programs, arguments, {"num_warps": mode.norm_warps})]

    def roundings(self, problem: AllReduceNorm) -> float:
        """Each part, and the sum; then those of the norm."""
        return 2.0 + OF_THE_NORM


def norm_launch(problem: AllReduceNorm, mode: Norming, tensors: Tensors, summed: torch.Tensor) -> Launch:
    """The sum with the residual, and the norm, after an all-reduce of the library's, whose result is ``summed``."""
    arguments = {**norm_arguments(problem, mode, tensors), "x": summed}
    return Launch(device.add_norm_kernel, blocks(problem, mode), arguments, {"num_warps": mode.norm_warps})


def blocks(problem: AllReduceNorm, mode: Norming) -> int:
    return math.ceil(problem.m / mode.norm_rows)


def norm_arguments(problem: AllReduceNorm, mode: Norming, tensors: Tensors) -> dict[str, Any]:
    return {
        "scales": None, **vars(tensors), "M": problem.m, "N": problem.n, "eps": problem.eps, "BLOCK_M": mode.norm_rows,
        "BLOCK_N": round_up(problem.n), "TYPE": getattr(tl, DTYPES[problem.dtype].triton),
        "GROUP": SCALE_BLOCK if problem.quantised == "block" else round_up(problem.n),
    }  # fmt: skip
