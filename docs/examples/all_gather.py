"""An all-gather of one's own, as docs/kernels.md builds it: a problem, a kernel, a space, and what joins them.

AUTOTUNE_WORKLOADS=docs/examples/all_gather.py tune all-gather --rows 64 --columns 256 --world-size 2 --trials 8
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import triton
import triton.language as tl

from autotune.config import Config
from autotune.heap import device as heap
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.plan import Compiled, Launch, compile_all, run_all
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run, meta
from autotune.kernels.primitives.counters import arrive, finish, wait_for_all
from autotune.machine import Machine
from autotune.problem import Problem, size
from autotune.search_spaces import Constraint, Setting, Space, choices, numbers
from autotune.workloads import Tolerance, Workload
from autotune.workloads.comparison import distance, drawn
from autotune.workloads.scratch import ScratchOperation
from autotune.workloads.workload import Error


@dataclass(frozen=True, kw_only=True)
class AllGather(Problem):
    """Every rank gets the [rows, columns] of every rank."""

    workload = "all_gather"
    free = ("rows",)

    rows: int = size("rows of each rank")
    columns: int = size("columns")

    @property
    def elements(self) -> int:
        """Of one rank."""
        return self.rows * self.columns


@triton.jit(do_not_specialize=["elements", "rank", "spin_limit"])
def push_kernel(
    x, inbox, out, elements, rank, heap_bases, epoch_counter, arrivals, status, spin_limit,
    WORLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store our block into every inbox, signal it, wait for everybody's, copy out. Two slots, used in turn."""
    pid, programs = tl.program_id(0), tl.num_programs(0)
    epoch = tl.load(epoch_counter)
    place = pid * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    wide = tl.cast(elements, tl.int64)  # all ranks' together may be more than an int32 counts
    box = inbox + (epoch & 1) * WORLD * wide
    value = tl.load(x + place, mask=inside)
    for turn in tl.static_range(WORLD):
        heap.store(box + rank * wide + place, value, rank, (rank + turn) % WORLD, heap_bases, mask=inside)
    heap.signal_each(arrivals + rank * programs + pid, rank, heap_bases, WORLD, 0)
    sources = tl.arange(0, triton.next_power_of_2(WORLD))
    counters = arrivals + sources * programs + pid
    late = heap.wait_each(counters, sources < WORLD, epoch + 1, status, spin_limit)
    for source in range(WORLD):
        part = tl.load(box + source * wide + place + late, mask=inside)
        tl.store(out + source * wide + place, part, mask=inside)
    finish(epoch_counter, programs)


# --- the mode that the guide adds: from here …
@triton.jit(do_not_specialize=["elements", "rank", "spin_limit"])
def pull_kernel(
    x, out, elements, rank, heap_bases, epoch_counter, ready, done, status, spin_limit,
    WORLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Load every rank's block from where it lies. ``ready``: mine is in place; ``done``: I have read all of yours."""
    pid, programs = tl.program_id(0), tl.num_programs(0)
    epoch = tl.load(epoch_counter)
    place = pid * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    if pid == 0:
        arrive(ready, rank, heap_bases, WORLD)
    for turn in range(WORLD):
        peer = (rank + turn) % WORLD
        late = heap.wait(ready + peer, epoch + 1, status, spin_limit)
        part = heap.load(x + place + late, rank, peer, heap_bases, mask=inside)
        tl.store(out + peer * tl.cast(elements, tl.int64) + place, part, mask=inside)
    if finish(epoch_counter, programs):
        heap.signal_each(done + rank, rank, heap_bases, WORLD, 0)
        wait_for_all(done, epoch + 1, status, spin_limit, WORLD)


# … to here, and what says "pull" below.


def no_more_than_there_is(s: Setting, block: int) -> bool:
    return block <= max(256, 1 << (s.problem.elements - 1).bit_length())


SPACE = Space(
    choices("mode", "bsp", "push", "pull", help="communication strategy"),
    numbers("block", 256, 512, 1024, 2048, 4096, modes=("push", "pull"), help="elements that a program moves"),
    numbers("num_warps", 1, 2, 4, 8, modes=("push", "pull"), help="warps of a program"),
    constraints=(Constraint("block", ("block",), no_more_than_there_is, "a block would be larger than all there is"),),
)


@dataclass(frozen=True)
class Scratch:
    """What the ranks share, counters zero at the start."""

    epoch_counter: torch.Tensor
    status: torch.Tensor
    counters: torch.Tensor
    """int32 [world_size, blocks] for the push; [2, world_size] for the pull."""
    inbox: torch.Tensor


def scratch_of(problem: AllGather, config: Config, allocate: Allocate) -> Scratch:
    """From a heap's ``allocate``, or one that makes meta tensors."""
    pushes = config["mode"] == "push"
    blocks = triton.cdiv(problem.elements, config.integer("block"))
    return Scratch(
        epoch_counter=allocate((2,), torch.int32),
        status=allocate((1,), torch.int32),
        counters=allocate((problem.world_size, blocks) if pushes else (2, problem.world_size), torch.int32),
        inbox=allocate((2 * pushes, problem.world_size * problem.elements), TORCH_DTYPES[problem.dtype]),
    )


def plan(
    problem: AllGather, config: Config, x: torch.Tensor, out: torch.Tensor, scratch: Scratch, bases: torch.Tensor,
    rank: int, spin_limit: int,
) -> list[Launch]:  # fmt: skip
    """The launches of one call."""
    block = config.integer("block")
    common = {
        "x": x, "out": out, "elements": problem.elements, "rank": rank, "heap_bases": bases,
        "epoch_counter": scratch.epoch_counter,
        "status": scratch.status, "spin_limit": spin_limit, "WORLD": problem.world_size, "BLOCK": block,
    }  # fmt: skip
    programs, options = triton.cdiv(problem.elements, block), {"num_warps": config.integer("num_warps")}
    if config["mode"] == "pull":
        counters = {"ready": scratch.counters[0], "done": scratch.counters[1]}
        return [Launch(pull_kernel, programs, common | counters, options)]
    boxes = {"inbox": scratch.inbox, "arrivals": scratch.counters}
    return [Launch(push_kernel, programs, common | boxes, options)]


class Operation(ScratchOperation):
    """One rank's tensors."""

    def __init__(self, problem: AllGather, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        self._problem, self._spin_limit = problem, spin_limit
        self._x = heap.allocate((problem.rows, problem.columns), TORCH_DTYPES[problem.dtype])
        self._out = torch.empty_like(self._x).repeat(problem.world_size, 1)
        self._expected = self._out
        super().__init__(heap)

    def share(self, config: Config) -> Scratch | None:
        if config["mode"] == "bsp":
            return None
        scratch = scratch_of(self._problem, config, self._heap.allocate)
        for counters in (scratch.epoch_counter, scratch.status, scratch.counters):
            counters.zero_()
        self._heap.barrier()
        return scratch

    def bind(self, config: Config) -> Run:
        if self.scratch is None:
            return lambda: torch.distributed.all_gather_into_tensor(self._out, self._x) and None
        heap = self._heap
        launches = plan(
            self._problem, config, self._x, self._out, self.scratch, heap.bases, heap.rank, self._spin_limit
        )
        return partial(run_all, launches)

    def refresh(self, seed: int) -> None:
        parts = [drawn(tuple(self._x.shape), self._x.dtype, self._x.device, 1000 * seed + rank)
                 for rank in range(self._heap.world_size)]  # fmt: skip
        self._x.copy_(parts[self._heap.rank])
        self._expected = torch.cat(parts).float()
        self._out.fill_(float("nan"))
        if self.scratch is not None:
            self.scratch.inbox.fill_(float("nan"))

    def inputs(self) -> list[torch.Tensor]:
        return [self._x]

    def outputs(self) -> list[torch.Tensor]:
        return [self._out]

    def error(self) -> Error:
        return distance(self._out, self._expected)

    def parts(self) -> dict[str, Run]:
        return {"all_gather": lambda: torch.distributed.all_gather_into_tensor(self._out, self._x) and None}


class AllGatherWorkload(Workload):
    """The plug-in."""

    name = "all_gather"
    problem_type = AllGather
    space = SPACE
    sources: ClassVar = ("autotune.heap.device", "autotune.kernels.primitives.counters")

    def default_problem(self, machine: Machine, world_size: int) -> AllGather:
        return AllGather(rows=64, columns=256 if machine.is_interpreter else 8192, world_size=world_size)

    def default_config(self, problem: AllGather, machine: Machine) -> Config:
        return Config({"mode": "push", "block": 256 if problem.elements <= 1024 else 1024, "num_warps": 4})

    def first_configs(self, problem: AllGather, machine: Machine) -> list[Config]:
        default = self.default_config(problem, machine)
        return [default, default.replace(mode="pull")]

    def baselines(self, problem: AllGather, machine: Machine) -> dict[str, Config]:
        return {"bsp": Config({"mode": "bsp"})}

    def tolerance(self, problem: AllGather) -> Tolerance:
        return Tolerance(overall=0.0, element=0.0)  # copies are exact

    def heap_bytes(self, problem: AllGather) -> int:
        return (2 * problem.world_size + 1) * problem.elements * problem.element_size + (1 << 20)

    def operation(self, problem: AllGather, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> Operation:
        return Operation(problem, heap, machine, spin_limit)

    def compile(self, problem: AllGather, config: Config, machine: Machine) -> list[Compiled]:
        if config["mode"] == "bsp":
            return []
        dtype, shape = TORCH_DTYPES[problem.dtype], (problem.rows, problem.columns)
        scratch, bases = scratch_of(problem, config, meta), meta((problem.world_size,), torch.int64)
        out = meta((problem.world_size * problem.rows, problem.columns), dtype)
        return compile_all(plan(problem, config, meta(shape, dtype), out, scratch, bases, 0, 1 << 20))


WORKLOAD = AllGatherWorkload()
