"""Rivals: what PyTorch and Iris offer for the same operations, set up as workloads whose parts are the rivals.

A rival that cannot be set up here, or gives a wrong result, is left out; why, the ranks say on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autotune.heap.loading import import_iris
from autotune.workloads.all_gather_gemm import AllGatherGemmOperation, AllGatherGemmWorkload
from autotune.workloads.gemm_all_reduce import GemmAllReduceOperation, GemmAllReduceWorkload
from autotune.workloads.gemm_reduce_scatter import GemmReduceScatterOperation, GemmReduceScatterWorkload
from autotune.workloads.workload import Run

Rival = Callable[[Any], Callable[[], torch.Tensor]]
"""Gets an operation, returns what makes one call and gives its result."""

FAR = 0.05
"""Relative distance from the library's result beyond which a rival's counts as wrong."""


def group_name() -> str:
    """The default group's, for ``symm_mem``."""
    return dist.group.WORLD.group_name


def symm_mem_all_gather(operation: Any) -> Callable[[], torch.Tensor]:
    """PyTorch: symm_mem.fused_all_gather_matmul."""
    tensors = operation._tensors
    return lambda: torch.ops.symm_mem.fused_all_gather_matmul(tensors.a, [tensors.b], 0, group_name())[1][0]


def symm_mem_reduce_scatter(operation: Any) -> Callable[[], torch.Tensor]:
    """PyTorch: symm_mem.fused_matmul_reduce_scatter."""
    tensors = operation._tensors
    return lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(tensors.a, tensors.b, "sum", 0, group_name())


def symm_mem_one_shot(operation: Any) -> Callable[[], torch.Tensor]:
    """PyTorch: matmul into symmetric memory, then symm_mem.one_shot_all_reduce."""
    from torch.distributed import _symmetric_memory

    tensors = operation._tensors
    product = _symmetric_memory.empty(tensors.c.shape, dtype=tensors.c.dtype, device=tensors.c.device)
    _symmetric_memory.rendezvous(product, group_name())

    def run() -> torch.Tensor:
        torch.matmul(tensors.a, tensors.b, out=product)
        return torch.ops.symm_mem.one_shot_all_reduce(product, "sum", group_name())

    return run


def iris_all_gather(operation: Any) -> Callable[[], torch.Tensor]:
    """iris.ops.all_gather_matmul, its own defaults: A sharded along K."""
    import_iris()
    from iris.ops import all_gather_matmul

    tensors, heap = operation._tensors, operation._heap
    workspace = []

    def run() -> torch.Tensor:
        workspace[:] = [
            all_gather_matmul(
                heap.context,
                tensors.c,
                tensors.a,
                tensors.b,
                async_op=True,
                workspace=workspace and workspace[0] or None,
            )
        ]
        return tensors.c

    return run


class Rivals:
    """Mixed into an operation: its parts are the rivals that work."""

    rivals: dict[str, Rival]

    def refresh(self, seed: int) -> None:
        """As the operation does; keeps quiet about configs, for there is none."""
        super().refresh(seed)  # type: ignore[misc]

    def parts(self) -> dict[str, Run]:
        """Each rival once tried, and compared."""
        self.refresh(1)
        found = {}
        for name, make in self.rivals.items():
            works, run = self._try(name, make)
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, works, group=self._heap.group)  # type: ignore[attr-defined]
            if all(everyone):
                found[name] = run
        return found

    def _try(self, name: str, make: Rival) -> tuple[bool, Run]:
        try:
            call = make(self)
            result = call()
            torch.cuda.synchronize()
        except (RuntimeError, AssertionError, ValueError, TypeError, NotImplementedError, AttributeError) as error:
            print(f"rival {name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
            return False, lambda: None
        reference = self._reference.to(result.dtype).view(-1)[: result.numel()]  # type: ignore[attr-defined]
        away = float((result.reshape(-1).float() - reference.float()).norm() / reference.float().norm())
        if not away < FAR:
            print(f"rival {name}: wrong by {away:.2g}", file=sys.stderr, flush=True)
            return False, lambda: None

        def run() -> None:
            call()

        return True, run


class AllGatherRivals(Rivals, AllGatherGemmOperation):
    """All-gather + GEMM."""

    @property
    def rivals(self) -> dict[str, Rival]:  # type: ignore[override]
        """By layout: PyTorch's takes rows, Iris's takes K."""
        if self._problem.rows_layout:
            return {"torch symm_mem": symm_mem_all_gather}
        return {"iris.ops": iris_all_gather}


class ReduceScatterRivals(Rivals, GemmReduceScatterOperation):
    """GEMM + reduce-scatter."""

    rivals = {"torch symm_mem": symm_mem_reduce_scatter}


class AllReduceRivals(Rivals, GemmAllReduceOperation):
    """GEMM + all-reduce."""

    rivals = {"torch symm_mem": symm_mem_one_shot}


class RivalsOfAllGatherGemm(AllGatherGemmWorkload):
    name = "rivals_of_all_gather_gemm"

    def operation(self, *arguments: Any) -> AllGatherRivals:
        return AllGatherRivals(*arguments)


class RivalsOfGemmReduceScatter(GemmReduceScatterWorkload):
    name = "rivals_of_gemm_reduce_scatter"

    def operation(self, *arguments: Any) -> ReduceScatterRivals:
        return ReduceScatterRivals(*arguments)


class RivalsOfGemmAllReduce(GemmAllReduceWorkload):
    name = "rivals_of_gemm_all_reduce"

    def operation(self, *arguments: Any) -> AllReduceRivals:
        return AllReduceRivals(*arguments)


ALL_GATHER = RivalsOfAllGatherGemm()
REDUCE_SCATTER = RivalsOfGemmReduceScatter()
ALL_REDUCE = RivalsOfGemmAllReduce()
