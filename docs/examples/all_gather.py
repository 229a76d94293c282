"""An all-gather of one's own, as docs/kernels.md builds it: a problem, a kernel, a space, and what joins them.

AUTOTUNE_WORKLOADS=docs/examples/all_gather.py tune all-gather --rows 64 --columns 256 --world-size 2 --trials 8
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.heap import device as heap
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run, element_type
from autotune.kernels.primitives.counters import arrive, finish, read_epoch, wait_for_all
from autotune.machine import Machine
from autotune.problem import Problem, size
from autotune.search_spaces import Constraint, Space, Task, choices, numbers
from autotune.workloads import Error, Tolerance
from autotune.workloads.comparison import distance, drawn
from autotune.workloads.launched import LaunchedOperation, LaunchedWorkload, Operands


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
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    place = pid * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    wide = tl.cast(elements, tl.int64)  # all ranks' together may be more than an int32 counts
    box = inbox + (epoch & 1) * WORLD * wide
    value = tl.load(x + place, mask=inside)
    for turn in tl.static_range(WORLD):
        heap.store(box + rank * wide + place, value, rank, (rank + turn) % WORLD, heap_bases, mask=inside)
    heap.signal_each(arrivals + rank * programs + pid, peers, WORLD, 0)
    sources = tl.arange(0, triton.next_power_of_2(WORLD))
    counters = arrivals + sources * programs + pid
    late = heap.wait_each(counters, sources < WORLD, epoch + 1, peers)
    for source in range(WORLD):
        part = tl.load(box + source * wide + place + late, mask=inside)
        tl.store(out + source * wide + place, part, mask=inside)
    finish(epoch_counter, programs)
    heap.seal(status, out, WORLD * wide)


# --- the mode that the guide adds: from here …
@triton.jit(do_not_specialize=["elements", "rank", "spin_limit"])
def pull_kernel(
    x, out, elements, rank, heap_bases, epoch_counter, ready, done, status, spin_limit,
    WORLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Load every rank's block from where it lies. ``ready``: mine is in place; ``done``: I have read all of yours."""
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    place = pid * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    if pid == 0:
        arrive(ready, peers, WORLD)
    for turn in range(WORLD):
        peer = (rank + turn) % WORLD
        late = heap.wait(ready + peer, epoch + 1, peers)
        part = heap.load(x + place + late, rank, peer, heap_bases, mask=inside)
        tl.store(out + peer * tl.cast(elements, tl.int64) + place, part, mask=inside)
    if finish(epoch_counter, programs):
        heap.signal_each(done + rank, peers, WORLD, 0)
        wait_for_all(done, epoch + 1, peers, WORLD)
    heap.seal(status, out, WORLD * tl.cast(elements, tl.int64))


# … to here, and what says "pull" below.


def no_more_than_there_is(s: Task[AllGather], block: int) -> bool:
    return block <= max(256, 1 << (s.problem.elements - 1).bit_length())


SPACE = Space(
    choices("mode", "bsp", "push", "pull", help="communication strategy"),
    numbers("block", 256, 512, 1024, 2048, 4096, modes=("push", "pull"), help="elements that a program moves"),
    numbers("num_warps", 1, 2, 4, 8, modes=("push", "pull"), help="warps of a program"),
    constraints=(Constraint("block", ("block",), no_more_than_there_is, "a block would be larger than all there is"),),
)


@dataclass(frozen=True)
class Scratch:
    """Memory shared by the ranks; counters are zero at the start."""

    epoch_counter: torch.Tensor
    counters: torch.Tensor
    """int32 [world_size, blocks] for the push; [2, world_size] for the pull."""
    inbox: torch.Tensor

    def poison(self) -> None:
        self.inbox.fill_(float("nan"))


@dataclass(frozen=True)
class Tensors:
    """One rank's block, and everybody's."""

    x: torch.Tensor
    out: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class AllGatherKnobs(Knobs):
    """The dimensions of the space; ``bsp`` has the mode alone."""

    block: int = 0
    num_warps: int = 0


PushCall = Call[AllGather, AllGatherKnobs, Tensors, Scratch]


class AllGatherKernels(Kernels[AllGather, AllGatherKnobs, Tensors, Scratch]):
    """How a config is launched."""

    knobs = AllGatherKnobs
    tensors_type = Tensors

    def tensors(self, problem: AllGather, shared: Allocate, own: Allocate) -> Tensors:
        dtype, (rows, columns) = TORCH_DTYPES[problem.dtype], (problem.rows, problem.columns)
        return Tensors(x=shared((rows, columns), dtype), out=own((problem.world_size * rows, columns), dtype))

    def scratch(self, task: Task[AllGather], knobs: AllGatherKnobs, shared: Allocate, own: Allocate) -> Scratch | None:
        problem = task.problem
        if knobs.mode == "bsp":
            return None
        pushes, world = knobs.mode == "push", problem.world_size
        blocks = triton.cdiv(problem.elements, knobs.block)
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            counters=shared((world, blocks) if pushes else (2, world), torch.int32),
            inbox=shared((2 * pushes, world * problem.elements), TORCH_DTYPES[problem.dtype]),
        )

    def scratch_bytes(self, problem: AllGather) -> int:
        blocks = triton.cdiv(problem.elements, 256)
        return problem.world_size * (2 * problem.elements * problem.element_size + 4 * blocks) + (8 << 10)

    def plan(self, call: PushCall) -> list[Launch]:
        problem, knobs, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        common = {
            "x": tensors.x, "out": tensors.out, "elements": problem.elements, "rank": call.rank,
            "heap_bases": call.bases, "epoch_counter": scratch.epoch_counter, "status": call.status,
            "spin_limit": call.spin_limit, "WORLD": problem.world_size, "BLOCK": knobs.block,
        }  # fmt: skip
        programs, options = triton.cdiv(problem.elements, knobs.block), {"num_warps": knobs.num_warps}
        if knobs.mode == "pull":
            counters = {"ready": scratch.counters[0], "done": scratch.counters[1]}
            return [Launch(pull_kernel, programs, common | counters, options)]
        boxes = {"inbox": scratch.inbox, "arrivals": scratch.counters}
        return [Launch(push_kernel, programs, common | boxes, options)]

    def library(self, call: Call[AllGather, AllGatherKnobs, Tensors, None]) -> Run:
        return partial(gather, call.tensors)

    def read_by_peers(self, problem: AllGather, knobs: AllGatherKnobs) -> tuple[int, int] | None:
        return (problem.rows, problem.columns) if knobs.mode == "pull" else None


def gather(tensors: Tensors) -> None:
    """The library's way."""
    all_gather_single(tensors.out, tensors.x)


KERNELS = AllGatherKernels()


class Operation(LaunchedOperation[AllGather, Tensors, Scratch]):
    """One rank's tensors."""

    def __init__(self, task: Task[AllGather], heap: SymmetricHeap, spin_limit: int) -> None:
        super().__init__(KERNELS, task, heap, spin_limit)
        self._expected = self._tensors.out

    def refresh(self, seed: int) -> None:
        x = self._tensors.x
        parts = [drawn(tuple(x.shape), x.dtype, x.device, 1000 * seed + rank) for rank in range(self._heap.world_size)]
        x.copy_(parts[self._heap.rank])
        self._expected = torch.cat(parts).float()
        self._tensors.out.fill_(float("nan"))
        self.poison()

    def error(self) -> Error:
        return distance(self._tensors.out, self._expected)

    def parts(self) -> dict[str, Run]:
        return {"all_gather": partial(gather, self._tensors)}


class AllGatherWorkload(LaunchedWorkload):
    """Joins problem, kernels and space."""

    problem_type = AllGather
    space = SPACE
    kernels = KERNELS

    def default_problem(self, machine: Machine, world_size: int) -> AllGather:
        return AllGather(rows=64, columns=256 if machine.is_interpreter else 8192, world_size=world_size)

    def default_config(self, task: Task[AllGather]) -> Config:
        return Config({"mode": "push", "block": 256 if task.problem.elements <= 1024 else 1024, "num_warps": 4})

    def first_configs(self, task: Task[AllGather]) -> list[Config]:
        default = self.default_config(task)
        return [default, default.replace(mode="pull")]

    def baselines(self, task: Task[AllGather]) -> dict[str, Config]:
        return {"bsp": Config({"mode": "bsp"})}

    def tolerance(self, problem: AllGather) -> Tolerance:
        return Tolerance(overall=0.0, element=0.0)  # copies are exact

    def heap_bytes(self, problem: AllGather) -> int:
        return problem.elements * problem.element_size + super().heap_bytes(problem)

    def operation(self, task: Task[AllGather], heap: SymmetricHeap, spin_limit: int) -> Operation:
        return Operation(task, heap, spin_limit)

    # What follows is for programs that call it, by ``autotune.runtime.operator.Operator(WORKLOAD)``.

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> AllGather:
        (x,) = operands
        if x is None or x.dim() != 2 or not x.is_contiguous():
            raise InvalidProblem("x has to be a matrix, and contiguous")
        dtype = element_type({"x": x}, TORCH_DTYPES)
        return AllGather(rows=x.shape[0], columns=x.shape[1], dtype=dtype, world_size=world_size)

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, int]:
        (x,) = operands
        assert x is not None
        return world_size * x.shape[0], x.shape[1]


WORKLOAD = AllGatherWorkload()
