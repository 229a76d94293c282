"""Rivals: what PyTorch and Iris offer for the same operations, set up as workloads whose parts are the rivals.

A rival that cannot be set up here, or gives a wrong result, is left out; why, the ranks say on stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers torch.ops.symm_mem

from autotune.config import Config
from autotune.heap.loading import import_iris
from autotune.workloads.all_gather_gemm import AllGatherGemmOperation, AllGatherGemmWorkload
from autotune.workloads.gemm_all_reduce import GemmAllReduceOperation, GemmAllReduceWorkload
from autotune.workloads.gemm_reduce_scatter import GemmReduceScatterOperation, GemmReduceScatterWorkload
from autotune.workloads.workload import Run

Rival = Callable[[Any], Callable[[], torch.Tensor]]
"""Gets an operation, returns what makes one call and gives its result."""

Tile = tuple[int, int, int]
Keep = Callable[[Any, torch.Tensor], torch.Tensor]
"""Gets the operation and the whole C, returns what of it a rank of the operation has."""

IRIS_TILES: tuple[Tile, ...] = ((256, 64, 64), (128, 128, 64), (128, 64, 64), (64, 64, 64))
"""The first is iris.ops' own default."""

PAPER = {
    "mode": "pull", "block_m": 256, "block_n": 64, "block_k": 64, "group_m": 6, "num_warps": 4, "num_stages": 3,
    "loads": "pointer", "schedule": "persistent",
}  # fmt: skip
"""Warps and stages are Triton's defaults, as there."""

PUSHING = {
    "mode": "push", "schedule": "tile", "split_k": 1, "preload_b": False, "unit_rows": 256, "k_chunks": 1,
    "comm_programs": 16, "copy_kib": 16, "peer_order": "rotate", "push_site": "side_stream", "head_start": 0,
}  # fmt: skip
"""The push is a kernel of its own on another stream there, of as many programs as there are row blocks or so."""

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


def everything(operation: Any, full: torch.Tensor) -> torch.Tensor:
    """The whole C."""
    return full


def own_rows(operation: Any, full: torch.Tensor) -> torch.Tensor:
    """This rank's rows of the whole C."""
    rows = len(full) // operation._heap.world_size
    return full[operation._heap.rank * rows :][:rows]


def iris_ops(function: str, keep: Keep = everything, tiles: Sequence[Tile | None] = IRIS_TILES) -> Rival:
    """A function of iris.ops, in the fastest of the tiles that it takes; with None it chooses its own.

    What it does on the host in a call, zeroing and a barrier, is part of it.
    """

    def rival(operation: Any) -> Callable[[], torch.Tensor]:
        import_iris()
        import iris.ops

        tensors, context, problem = operation._tensors, operation._heap.context, operation._problem
        full = torch.empty((problem.m, tensors.b.shape[1]), dtype=tensors.a.dtype, device=tensors.a.device)

        def call_with(tile: Tile | None) -> Callable[[], torch.Tensor]:
            sizes = zip(("block_size_m", "block_size_n", "block_size_k"), tile or (), strict=False)
            config = iris.ops.FusedConfig(**dict(sizes)) if tile else None
            state: dict[str, Any] = {"workspace": None}

            def run() -> torch.Tensor:
                state["workspace"] = getattr(iris.ops, function)(
                    context, full, tensors.a, tensors.b, async_op=True, config=config, **state
                )
                return keep(operation, full)

            return run

        fitting = [tile for tile in tiles if tile is None or tile[0] <= max(problem.m, IRIS_TILES[-1][0])]
        return fastest([call_with(tile) for tile in fitting])

    return rival


def fastest(calls: list[Callable[[], torch.Tensor]]) -> Callable[[], torch.Tensor]:
    """The call whose slowest rank is fastest, by the second call of each."""
    times = []
    for call in calls:
        call()
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return calls[int(slowest.argmin())]


def papers(mode: str) -> Rival:
    """Our kernel by the paper's design and constants: tiles of 256 × 64 × 64, six rows of tiles a group."""

    def rival(operation: Any) -> Callable[[], torch.Tensor]:
        run = operation.prepare(Config({**PAPER, **PUSHING} if mode == "push" else PAPER))

        def call() -> torch.Tensor:
            run()
            return operation._tensors.c

        return call

    return rival


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
        return {
            "iris.ops": iris_ops("all_gather_matmul"),
            "iris.ops, HBM buffer": iris_ops("all_gather_matmul_hbm_buffer", tiles=[None]),
            "paper's pull": papers("pull"),
            "paper's push": papers("push"),
        }


class ReduceScatterRivals(Rivals, GemmReduceScatterOperation):
    """GEMM + reduce-scatter."""

    rivals = {"torch symm_mem": symm_mem_reduce_scatter, "iris.ops": iris_ops("matmul_reduce_scatter", own_rows)}


class AllReduceRivals(Rivals, GemmAllReduceOperation):
    """GEMM + all-reduce."""

    rivals = {
        "torch symm_mem": symm_mem_one_shot,
        "iris.ops": iris_ops("matmul_all_reduce"),
    }


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
