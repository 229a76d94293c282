"""Rivals: what PyTorch, FlashInfer, QuACK, Iris and the paper offer for the same operations, and what serving stacks do
for them, as workloads whose parts are the rivals.

Beside them runs our operation with the config that was tuned for the problem, so that all are measured in turns in one
process. A rival that cannot be set up here, or gives a wrong result, is left out; why, the ranks say on stderr.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # a rank loads this file by its path

import rival_flashinfer as flashinfer
import rival_quack as quack
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers torch.ops.symm_mem
from latencies import WINNER
from rival_dispatch import Dispatch, symm_mem_dispatch
from triton.compiler.errors import CompilationError

import autotune
from autotune.config import Config
from autotune.errors import HeapExhausted
from autotune.heap.loading import import_iris
from autotune.kernels.launching.contract import Setup
from autotune.task import Task
from autotune.workloads import Workload
from autotune.workloads.built_in.all_gather_gemm import WORKLOAD as GATHER
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmOperation
from autotune.workloads.built_in.all_reduce_norm import WORKLOAD as NORM
from autotune.workloads.built_in.gemm_all_reduce import WORKLOAD as REDUCE
from autotune.workloads.built_in.gemm_all_reduce import GemmAllReduceOperation
from autotune.workloads.built_in.gemm_reduce_scatter import WORKLOAD as SCATTER
from autotune.workloads.built_in.gemm_reduce_scatter import GemmReduceScatterOperation
from autotune.workloads.built_in.moe_dispatch import WORKLOAD as DISPATCH
from autotune.workloads.interface import Run
from autotune.workloads.launched import LaunchedWorkload

Rival = Callable[[Any], Callable[[], torch.Tensor]]
"""Gets an operation, returns what makes one call and gives its result."""

Offers = Callable[[Any], dict[str, Rival]]
"""Gets a problem, returns what there is for it, by name."""

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
    "mode": "push", "schedule": "tile", "split_k": 1, "preload_b": False, "transfer_rows": 256, "k_chunks": 1,
    "comm_programs": 16, "copy_kib": 16, "peer_order": "rotate", "push_site": "side_stream", "head_start": 0,
}  # fmt: skip
"""The push is a kernel of its own on another stream there, of as many programs as there are row blocks or so."""

SERVED = Config({"mode": "custom_collective", "protocol": "sentinel", "sum_warps": 4})

FAILURES = (
    RuntimeError, AssertionError, ValueError, TypeError, NotImplementedError, AttributeError, CompilationError,
    HeapExhausted, ImportError,
)  # fmt: skip

AT_ONCE = 5
"""Configs of ours that are set up at a time as rivals of one problem, or beside them."""

FAR = 0.05
"""Relative distance from the library's result beyond which a rival's counts as wrong."""


def group_name() -> str:
    return dist.group.WORLD.group_name


def symm_mem_gather(operation: Any) -> Callable[[], torch.Tensor]:
    """PyTorch: symm_mem.fused_all_gather_matmul or, of fp8 with scales per tensor or row, its scaled one."""
    tensors, problem = operation._tensors, operation._problem
    if not problem.scaled:
        return lambda: torch.ops.symm_mem.fused_all_gather_matmul(tensors.a, [tensors.b], 0, group_name())[1][0]
    return lambda: torch.ops.symm_mem.fused_all_gather_scaled_matmul(
        tensors.a, [tensors.b], tensors.scale_a, [tensors.scale_b], 0, group_name(), [None], [None],
        [tensors.c.dtype], [problem.fast_accum],
    )[1][0]  # fmt: skip


def symm_mem_scatter(operation: Any) -> Callable[[], torch.Tensor]:
    """PyTorch: symm_mem.fused_matmul_reduce_scatter, likewise."""
    tensors, problem = operation._tensors, operation._problem
    if not problem.scaled:
        return lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(tensors.a, tensors.b, "sum", 0, group_name())
    return lambda: torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
        tensors.a, tensors.b, tensors.scale_a, tensors.scale_b, "sum", 0, 0, group_name(), [problem.m, problem.n],
        out_dtype=tensors.c.dtype, use_fast_accum=problem.fast_accum,
    )  # fmt: skip


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
    return full


def own_rows(operation: Any, full: torch.Tensor) -> torch.Tensor:
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
    return lambda operation: ours(GATHER, operation, Config({**PAPER, **PUSHING} if mode == "push" else PAPER))


def served(exchange: str) -> Rival:
    """As serving stacks do it: the library's GEMM, then our all-reduce in the faster of two blocks."""

    def rival(operation: Any) -> Callable[[], torch.Tensor]:
        problem, here = operation._problem, operation._machine
        base = SERVED.replace(exchange=exchange, transfer_rows=max(16, 1 << (problem.m - 1).bit_length()))
        configs = [base.replace(sum_block=block) for block in (1024, 4096)]
        fitting = [config for config in configs if REDUCE.space.violation(config, Task(problem, here)) is None]
        if not fitting:
            raise ValueError("no block of elements fits the problem")
        return fastest([ours(REDUCE, operation, config) for config in fitting])

    return rival


def ours(
    workload: LaunchedWorkload, operation: Any, config: Config, in_place: bool = True
) -> Callable[[], torch.Tensor]:  # fmt: skip
    """Our kernel with a config, on scratch of its own: ``prepare`` would take it away from the rival before.

    ``in_place``: peers may read A where it lies, if they can; otherwise a call copies it first.
    """
    tensors, heap, problem = operation._tensors, operation._heap, operation._problem
    if not in_place and "in_place" in problem.as_dict():
        problem = replace(problem, in_place=False)
    first = getattr(tensors, workload.kernels.operands[0])
    run = Setup(
        workload.kernels, Task(problem, operation._machine), config, heap, operation._spin_limit,
        shard=first if in_place and heap.owns(first) else None,
    ).bind(tensors)  # fmt: skip

    def call() -> torch.Tensor:
        run()
        result: torch.Tensor = getattr(tensors, workload.kernels.results[0])
        return result

    return call


def tuned(workload: LaunchedWorkload) -> Rival:
    """Our operation with the config in the database, A copied where peers read it, as PyTorch's copies it; a failure
    where none was tuned.
    """

    def rival(operation: Any) -> Callable[[], torch.Tensor]:
        asked = workload.problem_type.from_dict(operation._problem.as_dict())
        if "in_place" in asked.as_dict():
            asked = replace(asked, in_place=False)
        found = autotune.lookup(workload.name, asked)
        if found.source != "exact":
            raise ValueError(f"not tuned: {found.reason}")
        eager = found.config.replace(launch="eager") if "launch" in found.config else found.config
        return ours(workload, operation, eager, in_place=False)

    return rival


class Rivals:
    """Mixed into an operation: its parts are the rivals that work."""

    offers: Offers

    @functools.cached_property
    def _working(self) -> dict[str, Run]:
        """Each rival once tried, and compared."""
        self.refresh(1)  # type: ignore[attr-defined]
        found = {}
        for name, make in self.offers(self._problem).items():  # type: ignore[attr-defined]
            works, run = self._try(name, make)
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, works, group=self._heap.group)  # type: ignore[attr-defined]
            if all(everyone):
                found[name] = run
        return found

    def parts(self) -> dict[str, Run]:
        return self._working

    def _try(self, name: str, make: Rival) -> tuple[bool, Run]:
        try:
            call = make(self)
            result = call()
            torch.cuda.synchronize()
        except FAILURES as error:
            if "CUDA error" in str(error):
                raise  # this process can do nothing more with its GPU: the gang has to start another
            print(f"rival {name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
            return False, lambda: None
        reference = self.expected().to(result.dtype).reshape(-1)[: result.numel()]  # type: ignore[attr-defined]
        if len(reference) != result.numel():
            print(f"rival {name}: {result.numel()} elements, {len(reference)} are right", file=sys.stderr, flush=True)
            return False, lambda: None
        away = float((result.reshape(-1).float() - reference.float()).norm() / reference.float().norm())
        if not away < FAR:
            print(f"rival {name}: wrong by {away:.2g}", file=sys.stderr, flush=True)
            return False, lambda: None

        def run() -> None:
            call()

        return True, run


def plugin(
    supplier: str, workload: LaunchedWorkload, operation: type, rivals: dict[str, Rival],
    takes: Callable[[Any], bool] = lambda problem: True,
) -> Workload:  # fmt: skip
    """The workload with a supplier's rivals as its parts, where they take the problem, and our winner beside them; a
    rival that hangs takes only its supplier's with it.
    """
    every = {**rivals, WINNER: tuned(workload)}

    class Theirs(Rivals, operation):  # type: ignore[misc]
        offers = staticmethod(lambda problem: every if takes(problem) else {})

    named = f"{supplier}_{workload.name}"

    class Plugin(type(workload)):  # type: ignore[misc]
        name, problem_type, operation_type = named, type(named, (workload.problem_type,), {"workload": named}), Theirs

        def operation(self, task: Task[Any], *arguments: Any) -> Any:
            if "in_place" in task.problem.as_dict():  # Iris reads A where peers can
                task = replace(task, problem=replace(task.problem, in_place=True))
            return super().operation(task, *arguments)

        def heap_bytes(self, problem: Any) -> int:
            return AT_ONCE * super().heap_bytes(problem)

    return Plugin()


def is_plain(problem: Any) -> bool:
    return not problem.scaled and not problem.gated


def gathers_rows(problem: Any) -> bool:
    """As PyTorch does, which puts no epilogue behind the product."""
    return problem.rows_layout and not problem.gated and problem.scales != "block"


def gathers_plain_rows(problem: Any) -> bool:
    return problem.rows_layout and is_plain(problem)


def gathers_columns(problem: Any) -> bool:
    """As Iris and the paper do."""
    return not problem.rows_layout and is_plain(problem)


def without_blocks(problem: Any) -> bool:
    return problem.scales != "block"


SYMM_MEM, IRIS = "torch symm_mem", "iris.ops"
GATHERS_COLUMNS = {
    IRIS: iris_ops("all_gather_matmul"),
    "iris.ops, HBM buffer": iris_ops("all_gather_matmul_hbm_buffer", tiles=[None]),
}
PAPERS = {"paper's pull": papers("pull"), "paper's push": papers("push")}
QUACK = {"QuACK": lambda operation: fastest(quack.gather(operation))}
SUMS = {f"library's GEMM, our {exchange}": served(exchange) for exchange in ("one_shot", "two_shot")}

TORCH_GATHER = plugin("torch", GATHER, AllGatherGemmOperation, {SYMM_MEM: symm_mem_gather}, gathers_rows)
FLASHINFER_GATHER = plugin(
    "flashinfer", GATHER, AllGatherGemmOperation, {"FlashInfer": flashinfer.gather}, gathers_plain_rows
)
QUACK_GATHER = plugin("quack", GATHER, AllGatherGemmOperation, QUACK, gathers_plain_rows)
IRIS_GATHER = plugin("iris", GATHER, AllGatherGemmOperation, GATHERS_COLUMNS, gathers_columns)
PAPER_GATHER = plugin("paper", GATHER, AllGatherGemmOperation, PAPERS, gathers_columns)
TORCH_SCATTER = plugin("torch", SCATTER, GemmReduceScatterOperation, {SYMM_MEM: symm_mem_scatter}, without_blocks)
IRIS_SCATTER = plugin(
    "iris", SCATTER, GemmReduceScatterOperation, {IRIS: iris_ops("matmul_reduce_scatter", own_rows)}, is_plain
)
TORCH_REDUCE = plugin("torch", REDUCE, GemmAllReduceOperation, {SYMM_MEM: symm_mem_one_shot}, is_plain)
FLASHINFER_REDUCE = plugin("flashinfer", REDUCE, GemmAllReduceOperation, flashinfer.REDUCES, is_plain)
IRIS_REDUCE = plugin("iris", REDUCE, GemmAllReduceOperation, {IRIS: iris_ops("matmul_all_reduce")}, is_plain)
SERVED_REDUCE = plugin("served", REDUCE, GemmAllReduceOperation, SUMS)
FLASHINFER_NORM = plugin("flashinfer", NORM, flashinfer.Normed, flashinfer.NORMS)
TORCH_DISPATCH = plugin("torch", DISPATCH, Dispatch, {SYMM_MEM: symm_mem_dispatch})
