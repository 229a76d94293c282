"""C = all_gather(A) @ B, an operator of one's own from the tutorial's matmul: in two launches, or fused into one.

tune run docs/examples/fused_matmul.py:FusedMatmul --m 64 --n 64 --k 64 --world-size 2 --trials 6

docs/decorator.md walks through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from matmul import fits, multiply_tile

from autotune.config import Config
from autotune.heap import device as heap
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.plan import Compiled, Launch, compile_all
from autotune.kernels.launching.tensors import TORCH_DTYPES, meta
from autotune.kernels.primitives.counters import arrive, finish, wait_for_all
from autotune.machine import Machine
from autotune.problem import Problem, size
from autotune.search_spaces import Constraint, Space, choices, numbers
from autotune.workloads import Workload
from autotune.workloads.comparison import distance, drawn
from autotune.workloads.scratch import SPINS_OFFLINE, ScratchOperation
from autotune.workloads.workload import Error, Run


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
    pid, programs = tl.program_id(0), tl.num_programs(0)
    epoch = tl.load(epoch_counter)
    if pid == 0:
        arrive(ready, rank, heap_bases, WORLD)
    tiles_n, tiles_m = tl.cdiv(N, BLOCK_N), tl.cdiv(shard, BLOCK_M)
    row, column = pid // tiles_n, pid % tiles_n
    peer = (rank + row // tiles_m) % WORLD
    rows = row % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    late = heap.wait(ready + peer, epoch + 1, status, spin_limit)
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
        heap.signal_each(done + rank, rank, heap_bases, WORLD, 0)
        wait_for_all(done, epoch + 1, status, spin_limit, WORLD)


SPACE = Space(
    choices("mode", "gather", "pull", help="gather: the library's all-gather, then the matmul; pull: one launch"),
    numbers("BLOCK_M", 16, 32, 64, 128), numbers("BLOCK_N", 16, 32, 64, 128, 256), numbers("BLOCK_K", 32, 64),
    numbers("num_warps", 4, 8), numbers("num_stages", 2, 3, 4),
    constraints=(
        Constraint("shared memory", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages"), fits, "the stages would not fit"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Shared:
    """What the ranks share: int32, zero at the start."""

    epoch_counter: torch.Tensor
    status: torch.Tensor
    ready: torch.Tensor
    done: torch.Tensor


def fused(problem: Gathered, config: Config, a: Any, b: Any, c: Any, shared: Shared, bases: Any, rank: int, spins: int
) -> Launch:  # fmt: skip
    """The one launch of mode pull."""
    blocks = {name: config.integer(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    shard, _ = problem.shard
    tiles = triton.cdiv(shard, blocks["BLOCK_M"]) * triton.cdiv(problem.n, blocks["BLOCK_N"])
    arguments = {
        "a": a, "b": b, "c": c, "shard": shard, "N": problem.n, "K": problem.k, "rank": rank, "heap_bases": bases,
        "epoch_counter": shared.epoch_counter, "ready": shared.ready, "done": shared.done, "status": shared.status,
        "spin_limit": spins, "WORLD": problem.world_size, **blocks,
    }  # fmt: skip
    return Launch(gather_multiply_tile, problem.world_size * tiles, arguments, launch_options(config))


def launch_options(config: Config) -> dict[str, int]:
    """What goes to the compiler."""
    return {name: config.integer(name) for name in ("num_warps", "num_stages")}


class Operation(ScratchOperation):
    """One rank's tensors."""

    def __init__(self, problem: Gathered, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        dtype = TORCH_DTYPES[problem.dtype]
        self._problem, self._spin_limit = problem, spin_limit
        self._a = heap.allocate(problem.shard, dtype)
        self._b = torch.empty(problem.k, problem.n, dtype=dtype, device=heap.device)
        self._c = torch.empty(problem.m, problem.n, dtype=dtype, device=heap.device)
        self._gathered = torch.empty(problem.m, problem.k, dtype=dtype, device=heap.device)
        self._expected = self._c
        super().__init__(heap)

    def share(self, config: Config) -> Shared | None:
        if config["mode"] == "gather":
            return None
        world = self._problem.world_size
        shared = Shared(*(self._heap.allocate((count,), torch.int32).zero_() for count in (2, 1, world, world)))
        self._heap.barrier()
        return shared

    def bind(self, config: Config) -> Run:
        if self.scratch is None:
            return partial(self._gather_then_multiply, config)
        heap = self._heap
        launch = fused(
            self._problem, config, self._a, self._b, self._c, self.scratch, heap.bases, heap.rank, self._spin_limit
        )
        return launch.run

    def _gather_then_multiply(self, config: Config) -> None:
        m, n, k = self._problem.m, self._problem.n, self._problem.k
        blocks = {name: config.integer(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
        dist.all_gather_into_tensor(self._gathered, self._a)
        grid = triton.cdiv(m, blocks["BLOCK_M"]), triton.cdiv(n, blocks["BLOCK_N"])
        multiply_tile[grid](self._gathered, self._b, self._c, m, n, k, **blocks, **launch_options(config))

    def refresh(self, seed: int) -> None:
        a = drawn((self._problem.m, self._problem.k), self._a.dtype, self._a.device, 2 * seed)
        self._a.copy_(a.chunk(self._problem.world_size)[self._heap.rank])
        self._b.copy_(drawn(tuple(self._b.shape), self._b.dtype, self._b.device, 2 * seed + 1))
        wide = torch.float64 if self._problem.dtype == "fp32" else torch.float32
        self._expected = a.to(wide) @ self._b.to(wide)
        self._c.fill_(float("nan"))
        self._gathered.fill_(float("nan"))

    def inputs(self) -> list[torch.Tensor]:
        return [self._a, self._b]

    def outputs(self) -> list[torch.Tensor]:
        return [self._c]

    def error(self) -> Error:
        return distance(self._c, self._expected)


class FusedMatmul(Workload):
    """The operator, for `tune run`."""

    problem_type = Gathered
    space = SPACE
    sources = ("matmul", "autotune.heap.device", "autotune.kernels.primitives.counters")

    def default_problem(self, machine: Machine, world_size: int) -> Gathered:
        m, nk = (32 * world_size, 64) if machine.is_interpreter else (512 * world_size, 4096)
        return Gathered(m=m, n=nk, k=nk, world_size=world_size)

    def default_config(self, problem: Gathered, machine: Machine) -> Config:
        blocks = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32}
        return Config({"mode": "pull", **blocks, "num_warps": 4, "num_stages": 3})

    def baselines(self, problem: Gathered, machine: Machine) -> dict[str, Config]:
        return {"two launches": self.default_config(problem, machine).replace(mode="gather")}

    def operation(self, problem: Gathered, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> Operation:
        return Operation(problem, heap, machine, spin_limit)

    def heap_bytes(self, problem: Gathered) -> int:
        rows, k = problem.shard
        return rows * k * problem.element_size + (1 << 20)

    def compile(self, problem: Gathered, config: Config, machine: Machine) -> list[Compiled]:
        if config["mode"] == "gather":
            return []
        dtype, world = TORCH_DTYPES[problem.dtype], problem.world_size
        a, b, c = (meta(shape, dtype) for shape in (problem.shard, (problem.k, problem.n), (problem.m, problem.n)))
        shared = Shared(*(meta((count,), torch.int32) for count in (2, 1, world, world)))
        return compile_all([fused(problem, config, a, b, c, shared, meta((world,), torch.int64), 0, SPINS_OFFLINE)])
