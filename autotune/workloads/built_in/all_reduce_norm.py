"""All-reduce + residual + RMSNorm as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.all_reduce_norm.launch import KERNELS, QUANTISING
from autotune.kernels.all_reduce_norm.modes import LibraryCollective
from autotune.kernels.all_reduce_norm.problem import QUANTISED, AllReduceNorm
from autotune.kernels.all_reduce_norm.ways import Tensors, norm_launch
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.gemm.problem import blocks
from autotune.kernels.launching.contract import Kernels
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, element_type
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads.comparison import drawn, drawn_weight, drawn_with_zeros, farthest, in_fp8, rounded, weighted
from autotune.workloads.gemm import FACTORS
from autotune.workloads.interface import Run
from autotune.workloads.launched import DrawnOperation, LaunchedWorkload, Operands, OutForm
from autotune.workloads.moded import ModedWorkload
from autotune.workloads.tolerance import Error, Tolerance


class AllReduceNormOperation(DrawnOperation[AllReduceNorm, Tensors, Any]):
    """The tensors of one rank, and the config prepared last. Its sets are X as it was drawn, times ``FACTORS``."""

    count = len(FACTORS)

    def refresh(self, seed: int) -> None:
        """Every rank draws every rank's part, so that the reference needs no communication."""
        tensors, world, rank = self._tensors, self._heap.world_size, self._heap.rank
        shape, dtype, device = (self._problem.m, self._problem.n), tensors.x.dtype, self._heap.device
        parts = [drawn_with_zeros(shape, dtype, device, seed * 1000 + other) for other in range(world)]
        self._part = parts[rank]
        self._sum = torch.stack(parts).to(self.wide).sum(0)
        tensors.residual.copy_(drawn(shape, torch.float32, device, seed * 1000 + 500).mul_(world**0.5))
        tensors.weight.copy_(drawn_weight((self._problem.n,), device, seed * 1000 + 600))
        self.put(self.count - 1)
        self.poison()

    def put(self, number: int) -> None:
        torch.mul(self._part, FACTORS[number], out=self._tensors.x)
        self._number = number

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The larger distance of the two results from their references; of an fp8 norm with its scales."""
        tensors = self._tensors
        expected = norm_of(self._sum * FACTORS[number], tensors.residual, tensors.weight, self._problem.eps)
        return farthest(widened(outputs), expected)

    def parts(self) -> dict[str, Run]:
        """The library's all-reduce alone, and our sum and norm of what it leaves."""
        tensors, problem = self._tensors, self._problem
        parts = torch.zeros_like(tensors.x)  # adding up again and again must not overflow
        mode = LibraryCollective.untuned(Task(problem.as_varying(), self._machine))
        assert mode is not None, problem
        launch = norm_launch(problem, mode, tensors, tensors.x)
        return {"all_reduce": lambda: torch.distributed.all_reduce(parts) and None, "norm": launch.run}


class NormedWorkload(LaunchedWorkload):
    """A workload with a norm as its first result; its kernels give the norm's scales last, where it is fp8."""

    quantising: Kernels[Any, Any, Any, Any]
    fused_norm: ClassVar[type[Any]]
    """The mode of the library's calls, then one kernel for sum and norm."""

    def baselines(self, task: Task[Any]) -> dict[str, Config]:
        """The library's calls, followed by the library's sum and norm, or by one kernel for both."""
        norm = self.fused_norm.untuned(task)
        assert norm is not None, task.problem
        return self.eager_and_graph({"bsp": Config({"mode": "bsp"}), "bsp fused norm": norm.config()}, task)

    def kernels_of(self, problem: Any) -> Kernels[Any, Any, Any, Any]:
        return self.kernels if problem.quantised == "none" else self.quantising


class Quantising(NormedWorkload):
    """A norm in fp8: its last option says for which parts of a row there are scales."""

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Any:
        """Raises InvalidProblem unless the call says for which."""
        if options[-1] not in QUANTISED[1:]:
            raise InvalidProblem(f"scales={options[-1]!r}: allowed: {', '.join(QUANTISED[1:])}")
        return super().problem_of(world_size, operands, options)

    def out_forms(self, world_size: int, operands: Operands, options: Sequence[Any]) -> list[OutForm]:
        rows, columns = shape = self.out_shape(world_size, operands, options)
        scales = rows, 1 if options[-1] == "row" else blocks(columns)
        total = self.out_dtype(operands, options)
        return [(shape, OPERAND_DTYPES["fp8"]), (shape, total), (scales, torch.float32)]


class AllReduceNormWorkload(NormedWorkload, ModedWorkload):
    problem_type = AllReduceNorm
    operation_type = AllReduceNormOperation
    kernels = KERNELS
    quantising = QUANTISING
    fused_norm = LibraryCollective
    options: ClassVar[tuple[str, ...]] = ("eps", "in_place")
    row_by_row = True

    def default_problem(self, machine: Machine, world_size: int) -> AllReduceNorm:
        """Llama-70B's hidden size at 16 tokens; a toy of the same form under the interpreter."""
        if machine.is_interpreter:
            return AllReduceNorm(m=8, n=128, world_size=world_size)
        return AllReduceNorm(m=16, n=8192, world_size=world_size)

    def tolerance_of(self, task: Task[AllReduceNorm], config: Config) -> Tolerance:
        problem = task.problem
        roundings = self.kernels.way_of(config).roundings(problem)
        found = weighted(rounded(problem.dtype, roundings, problem.n, problem.m * problem.n, task.machine))
        return found if problem.quantised == "none" else in_fp8(found)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> AllReduceNorm:
        """X and the residual are contiguous matrices of one shape, and the weight is as long as their rows."""
        x, residual, weight = operands
        dtype = element_type({"x": x, "residual": residual, "weight": weight}, TORCH_DTYPES)
        fits = x.dim() == 2 and residual.shape == x.shape and weight.shape == x.shape[1:]
        if not fits or not all(tensor.is_contiguous() for tensor in (x, residual, weight)):
            raise InvalidProblem(
                f"x is {list(x.shape)}, strides {x.stride()}, residual {list(residual.shape)}, strides "
                f"{residual.stride()}, weight {list(weight.shape)}: expected x and residual [m, n] and weight [n], "
                "all contiguous"
            )
        given = dict(zip(self.options, options, strict=True))
        return AllReduceNorm(m=x.shape[0], n=x.shape[1], **given, dtype=dtype, world_size=world_size)

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        return tuple(operands[0].shape)


class QuantisingWorkload(Quantising, AllReduceNormWorkload):
    kernels = QUANTISING
    options: ClassVar = (*AllReduceNormWorkload.options, "quantised")


WORKLOAD = AllReduceNormWorkload()
QUANTISING_NORM = QuantisingWorkload()


def widened(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Normed and total, of an fp8 norm its elements times their scales."""
    normed, total, *scales = outputs
    return [dequantised(normed, scales[0]) if scales else normed, total]


def norm_of(
    summed: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normed and total, in the type of ``summed`` [m, n], which is wider than theirs."""
    total = summed + residual
    scale = torch.rsqrt(total.square().mean(1, keepdim=True) + eps)
    return total * scale * weight.to(total.dtype), total
