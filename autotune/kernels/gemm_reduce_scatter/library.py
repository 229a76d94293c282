"""The library's GEMM, then its collective, or our kernel, which pulls the peers' parts and sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from autotune.kernels.gemm.library import OF_A_LIBRARY, multiply, ring
from autotune.kernels.gemm_reduce_scatter import device
from autotune.kernels.gemm_reduce_scatter.modes import CustomCollective, Library, ScatterTask, Summing
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.launching.collectives import reduce_scatter_single
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.one_program import empty_launches
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import Counters, poison_inboxes
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.kernels.launching.way import LibraryWay, Way

LONGEST_VECTOR = 16
"""Elements that a thread loads at once, at most."""

LibraryCall = Call[GemmReduceScatter, Library, SummedTensors, None]


class BulkSynchronous(LibraryWay[GemmReduceScatter, Library, SummedTensors]):
    def eager(self, call: LibraryCall) -> Run:
        """One library GEMM, one ``reduce_scatter_single`` straight into C, no copy between. The first rank alone adds
        the bias, within its GEMM.
        """
        problem, tensors = call.problem, call.tensors
        bias = tensors.bias if call.rank == 0 else None
        between = empty_launches(call.knobs.empty_launches)

        def run() -> None:
            product = tensors.c.new_empty((problem.m, problem.n))
            multiply(problem, tensors.a, tensors.scale_a, tensors, product, bias)
            for launch in between:
                launch.run()
            reduce_scatter_single(tensors.c, product, group=call.group)
            if tensors.residual is not None:
                tensors.c.add_(tensors.residual)

        return run

    def roundings(self, problem: GemmReduceScatter) -> float:
        return ring(problem.world_size) + problem.bias + problem.residual


M = TypeVar("M", bound=Summing)


@dataclass(frozen=True, kw_only=True)
class Parts(Counters):
    """Memory beside the operands. All but ``copy_engine``'s product is on the heap."""

    product: torch.Tensor
    """[m, n]: this rank's part of every row."""
    inbox: torch.Tensor
    """[world_size, rows, n], ``copy_engine``: the peers' parts of our rows; else empty."""

    def poison(self) -> None:
        poison_inboxes(self.inbox, self.product)


SumCall = Call[GemmReduceScatter, M, SummedTensors, Parts]


class SummingWay(Way[GemmReduceScatter, M, SummedTensors, Parts]):
    def parts(
        self, problem: GemmReduceScatter, shared: Allocate, product: Allocate, inbox: tuple[int, ...] = (0,)
    ) -> Parts:  # fmt: skip
        dtype = TORCH_DTYPES[problem.result_dtype]
        own = product((problem.m, problem.n), dtype)
        return Parts.of(problem.world_size, shared, product=own, inbox=shared(inbox, dtype))

    def sum_launch(self, call: SumCall[M], kernel: Any, **arguments: Any) -> Launch:
        """Each program takes ``sum_block`` elements of C."""
        problem, tensors, mode = call.problem, call.tensors, call.knobs
        elements = problem.rows * problem.n
        bias = tensors.bias if tensors.bias is not None else tensors.c
        common = {
            **call.common(), "bias": bias, "residual": tensors.residual, "BIAS": tensors.bias is not None,
            "c": tensors.c, "elements": elements, "N": problem.n, "BLOCK": mode.sum_block, "done": call.scratch.done,
        }  # fmt: skip
        programs = math.ceil(elements / mode.sum_block)
        return Launch(kernel, programs, common | arguments, {"num_warps": mode.sum_warps})

    def roundings(self, problem: GemmReduceScatter) -> float:
        """Each part, and the sum."""
        return 2.0 + OF_A_LIBRARY


class CustomCollectiveWay(SummingWay[CustomCollective]):
    def scratch(self, task: ScatterTask, mode: CustomCollective, shared: Allocate, own: Allocate) -> Parts:
        return self.parts(task.problem, shared, product=shared)

    def launches(self, call: SumCall[CustomCollective]) -> list[Launch]:
        scratch = call.scratch
        # Elements from which on addresses are known to be multiples: a rank's rows begin at a multiple of ``elements``.
        hint = math.gcd(call.problem.rows * call.problem.n, LONGEST_VECTOR)
        return [self.sum_launch(call, device.pull_sum_kernel, product=scratch.product, ready=scratch.ready, HINT=hint)]

    def run(self, call: SumCall[CustomCollective], launches: list[Launch]) -> Run:
        problem, tensors, product = call.problem, call.tensors, call.scratch.product

        def run() -> None:
            multiply(problem, tensors.a, tensors.scale_a, tensors, product)  # no rank still reads the product
            launches[0].run()

        return run
