"""C = all_gather(A) @ B, an operator of one's own from the tutorial's matmul: in two launches, or fused into one.

tune run docs/examples/fused_matmul.py:FusedMatmul --m 64 --n 64 --k 64 --world-size 2 --trials 6

docs/decorator.md walks through it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from matmul import fits, multiply_tile

from autotune.config import Config
from autotune.heap import device as heap
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.kernels.primitives.counters import arrive, finish, read_epoch, wait_for_all
from autotune.machine import Machine
from autotune.problem import Problem, size
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.task import Task
from autotune.workloads import Error
from autotune.workloads.comparison import distance, drawn
from autotune.workloads.launched import LaunchedOperation, LaunchedWorkload


@dataclass(frozen=True, kw_only=True)
class Gathered(Problem):
    """C [m, n] = all_gather(A [m / world_size, k]) @ B [k, n] on every rank."""

    workload = "fused_matmul"
    free = ("m",)

    m: int = size("rows of the whole A and of C")
    n: int = size("columns of each rank's B and C")
    k: int = size("columns of A, rows of B")

    def check(self) -> None:
        self.check_sharded("m")

    @property
    def shard(self) -> tuple[int, int]:
        """Of A, on each rank."""
        return self.m // self.world_size, self.k


@triton.jit(do_not_specialize=["shard", "rank", "spin_limit"])
def gather_multiply_tile(
    a, b, c, shard, N, K, rank, heap_bases, epoch_counter, ready, done, status, spin_limit,
    WORLD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The tutorial's tile, but the rows of A are loaded from the rank that has them, ours first."""
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    if pid == 0:
        arrive(ready, peers, WORLD)
    tiles_n, tiles_m = tl.cdiv(N, BLOCK_N), tl.cdiv(shard, BLOCK_M)
    row, column = pid // tiles_n, pid % tiles_n
    peer = (rank + row // tiles_m) % WORLD
    rows = row % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    late = heap.wait(ready + peer, epoch + 1, peers)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        inside = (rows[:, None] < shard) & (depth < K)
        left = heap.load(a + rows[:, None] * K + depth + late, rank, peer, heap_bases, mask=inside, other=0.0)
        right = tl.load(b + depth[:, None] * N + columns, mask=(depth[:, None] < K) & (columns < N), other=0.0)
        total += tl.dot(left, right)
    place = (peer * shard + rows[:, None]) * N + columns
    tl.store(c + place, total, mask=(rows[:, None] < shard) & (columns < N))
    if finish(epoch_counter, programs):
        heap.signal_each(done + rank, peers, WORLD, 0)
        wait_for_all(done, epoch + 1, peers, WORLD)
    heap.seal(status, c, WORLD * shard * N)


SPACE = Space(
    choices("mode", "gather", "pull", help="gather: the library's all-gather, then the matmul; pull: one launch"),
    numbers("BLOCK_M", 16, 32, 64, 128), numbers("BLOCK_N", 16, 32, 64, 128, 256), numbers("BLOCK_K", 32, 64),
    numbers("num_warps", 4, 8), numbers("num_stages", 2, 3, 4),
    constraints=(
        Constraint("shared memory", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages"), fits, "the stages would not fit"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and result."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


@dataclass(frozen=True)
class Scratch:
    """Memory shared by the ranks, zero at the start: one int64, the rest int32."""

    epoch_counter: torch.Tensor
    ready: torch.Tensor
    done: torch.Tensor

    def poison(self) -> None:
        """There are counters alone."""


@dataclass(frozen=True, kw_only=True)
class FusedMatmulKnobs(Knobs):
    """The dimensions of the space, which both modes have."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int]:
        """Of the kernel, and for the compiler."""
        blocks = {"BLOCK_M": self.BLOCK_M, "BLOCK_N": self.BLOCK_N, "BLOCK_K": self.BLOCK_K}
        return {**blocks, "num_warps": self.num_warps, "num_stages": self.num_stages}


class FusedMatmulKernels(Kernels[Gathered, FusedMatmulKnobs, Tensors, Scratch]):
    """How a config is launched."""

    knobs = FusedMatmulKnobs
    tensors_type = Tensors
    results = ("c",)

    def tensors(self, problem: Gathered, shared: Allocate, own: Allocate) -> Tensors:
        dtype = TORCH_DTYPES[problem.dtype]
        b, c = own((problem.k, problem.n), dtype), own((problem.m, problem.n), dtype)
        return Tensors(shared(problem.shard, dtype), b, c)

    def scratch(self, task: Task[Gathered], knobs: FusedMatmulKnobs, shared: Allocate, own: Allocate) -> Scratch | None:
        if knobs.mode == "gather":
            return None
        ready, done = (shared((task.problem.world_size,), torch.int32) for _ in range(2))
        return Scratch(shared((1,), torch.int64), ready, done)

    def scratch_bytes(self, problem: Gathered) -> int:
        return 4 << 10

    def plan(self, call: Call[Gathered, FusedMatmulKnobs, Tensors, Scratch]) -> list[Launch]:
        """The one launch of mode pull."""
        problem, knobs, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        shard, _ = problem.shard
        tiles = triton.cdiv(shard, knobs.BLOCK_M) * triton.cdiv(problem.n, knobs.BLOCK_N)
        arguments = {
            "a": tensors.a, "b": tensors.b, "c": tensors.c, "shard": shard, "N": problem.n, "K": problem.k,
            "rank": call.rank, "heap_bases": call.bases, "epoch_counter": scratch.epoch_counter, "ready": scratch.ready,
            "done": scratch.done, "status": call.status, "spin_limit": call.spin_limit,
            "WORLD": problem.world_size,
        }  # fmt: skip
        return [Launch(gather_multiply_tile, problem.world_size * tiles, arguments, knobs.options)]

    def library(self, call: Call[Gathered, FusedMatmulKnobs, Tensors, None]) -> Run:
        """The two launches of mode gather."""
        problem, knobs, tensors = call.problem, call.knobs, call.tensors
        m, n, k = problem.m, problem.n, problem.k
        gathered = torch.empty((m, k), dtype=tensors.a.dtype, device=tensors.a.device)
        grid = triton.cdiv(m, knobs.BLOCK_M), triton.cdiv(n, knobs.BLOCK_N)

        def gather_then_multiply() -> None:
            all_gather_single(gathered, tensors.a)
            multiply_tile[grid](gathered, tensors.b, tensors.c, m, n, k, **knobs.options)

        return gather_then_multiply

    def read_by_peers(self, problem: Gathered, knobs: FusedMatmulKnobs) -> tuple[int, int] | None:
        return problem.shard if knobs.mode == "pull" else None


KERNELS = FusedMatmulKernels()


class Operation(LaunchedOperation[Gathered, Tensors, Scratch]):
    """One rank's tensors."""

    def __init__(self, task: Task[Gathered], heap: SymmetricHeap, spin_limit: int) -> None:
        super().__init__(KERNELS, task, heap, spin_limit)
        self._expected = self._tensors.c

    def refresh(self, seed: int) -> None:
        problem, tensors = self._problem, self._tensors
        a = drawn((problem.m, problem.k), tensors.a.dtype, tensors.a.device, 2 * seed)
        tensors.a.copy_(a.chunk(problem.world_size)[self._heap.rank])
        tensors.b.copy_(drawn((problem.k, problem.n), tensors.b.dtype, tensors.b.device, 2 * seed + 1))
        self._expected = a.to(self.wide) @ tensors.b.to(self.wide)
        tensors.c.fill_(float("nan"))

    def error(self) -> Error:
        return distance(self._tensors.c, self._expected)


class FusedMatmul(LaunchedWorkload):
    """The operator, for `tune run`."""

    problem_type = Gathered
    space = SPACE
    kernels = KERNELS

    def default_problem(self, machine: Machine, world_size: int) -> Gathered:
        m, nk = (32 * world_size, 64) if machine.is_interpreter else (512 * world_size, 4096)
        return Gathered(m=m, n=nk, k=nk, world_size=world_size)

    def default_config(self, task: Task[Gathered]) -> Config:
        blocks = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32}
        return Config({"mode": "pull", **blocks, "num_warps": 4, "num_stages": 3})

    def baselines(self, task: Task[Gathered]) -> dict[str, Config]:
        return {"two launches": self.default_config(task).replace(mode="gather")}

    def operation(self, task: Task[Gathered], heap: SymmetricHeap, spin_limit: int) -> Operation:
        return Operation(task, heap, spin_limit)

    def heap_bytes(self, problem: Gathered) -> int:
        rows, k = problem.shard
        return rows * k * problem.element_size + super().heap_bytes(problem)
