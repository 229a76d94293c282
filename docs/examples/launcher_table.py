"""A launcher with a table written by hand, as serving stacks have them: its numbers tuned, the table written anew.

    torchrun --nproc-per-node 2 docs/examples/launcher_table.py --sizes 4096,65536,1048576 table.json
    TRITON_INTERPRET=1 torchrun --nproc-per-node 2 docs/examples/launcher_table.py --sizes 256,1024 --trials 4 t.json

The first half stands for somebody else's code: an all-reduce that looks its grid, its block, its warps and whether it
goes in one shot or two up by the number of elements. The second half says which numbers there are and how to call it
with some; nothing in the launcher knows of that. Where their row is fastest, it stays.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import triton
import triton.language as tl

import autotune
from autotune.config import Config
from autotune.heap import device as heap
from autotune.heap.arena import SymmetricHeap
from autotune.heap.status import new_status
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.kernels.primitives.counters import finish, read_epoch
from autotune.machine import Machine
from autotune.problem import Problem, size
from autotune.search_spaces import Constraint, Space, Task, choices, numbers
from autotune.workloads import Error, Operation, Workload
from autotune.workloads.comparison import distance, drawn

Row = dict[str, int]

TABLE: dict[int, Row] = {
    1 << 16: {"shots": 1, "programs": 16, "block": 1024, "num_warps": 4},
    1 << 20: {"shots": 2, "programs": 32, "block": 2048, "num_warps": 8},
}
"""Theirs, by the number of elements up to which a row holds; the last one holds beyond, too."""


def row_for(table: dict[int, Row], elements: int) -> Row:
    return table[min((most for most in table if most >= elements), default=max(table))]


@triton.jit
def _meet(arrivals, source, programs, epoch, peers, WORLD: tl.constexpr):
    """Wait for this program's twin on every rank. ``arrivals`` are int32 [WORLD, programs]. What is read afterwards
    hangs on the result, so that no load comes earlier.
    """
    heap.signal_each(arrivals + peers.rank * programs + source, peers, WORLD, 0)
    ranks = tl.arange(0, triton.next_power_of_2(WORLD))
    return heap.wait_each(arrivals + ranks * programs + source, ranks < WORLD, epoch + 1, peers)


@triton.jit
def _block(owner, within, shard, elements):
    """Where a block of ``owner``'s shard lies, and which of its elements exist."""
    place = owner * shard + within
    return place, (within < shard) & (place < elements)


@triton.jit
def _sum(staged, place, inside, peers, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for source in range(WORLD):
        part = heap.load(staged + place, peers.rank, source, peers.bases, mask=inside, other=0.0, hint=16)
        total += part.to(tl.float32)
    return total


@triton.jit(do_not_specialize=["rank", "spins"])
def all_reduce_kernel(
    x, out, staged, sums, elements, shard, rank, bases, epoch_counter, arrivals, status, spins,
    WORLD: tl.constexpr, SHOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stage X for the peers, meet, then read everybody's; in two shots the own shard's alone, meet again, and read the
    sums of the others'. A program has the same blocks of every shard. Two slots, used in turn.
    """
    peers = heap.Peers(rank, bases, status, spins)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    staged += (epoch & 1) * WORLD * shard
    sums += (epoch & 1) * shard
    for step in range(pid, tl.cdiv(shard, BLOCK), programs):
        for owner in range(WORLD):
            place, inside = _block(owner, step * BLOCK + tl.arange(0, BLOCK), shard, elements)
            tl.store(staged + place, tl.load(x + place, mask=inside), mask=inside)
    late = _meet(arrivals, pid, programs, epoch, peers, WORLD)
    for step in range(pid + late, tl.cdiv(shard, BLOCK), programs):
        within = step * BLOCK + tl.arange(0, BLOCK)
        if SHOTS == 1:
            for owner in range(WORLD):
                place, inside = _block(owner, within, shard, elements)
                tl.store(out + place, _sum(staged, place, inside, peers, WORLD, BLOCK), mask=inside)
        else:
            place, inside = _block(rank, within, shard, elements)
            tl.store(sums + within, _sum(staged, place, inside, peers, WORLD, BLOCK), mask=inside)
    if SHOTS == 2:
        late = _meet(arrivals + WORLD * programs, pid, programs, epoch, peers, WORLD)
        for step in range(pid + late, tl.cdiv(shard, BLOCK), programs):
            within = step * BLOCK + tl.arange(0, BLOCK)
            for owner in range(WORLD):
                place, inside = _block(owner, within, shard, elements)
                part = heap.load(sums + within, rank, owner, bases, mask=inside, hint=16)
                tl.store(out + place, part, mask=inside)
    finish(epoch_counter, programs)
    heap.seal(status, out, elements)


class Launcher:
    """Their all-reduce of tensors of so many elements. Without a row it takes their table's. Collective."""

    def __init__(self, memory: SymmetricHeap, like: torch.Tensor, spins: int, row: Row | None = None) -> None:
        elements, world = like.numel(), memory.world_size
        row, shard = row or row_for(TABLE, elements), 16 * triton.cdiv(elements, 16 * world)
        self.staged = memory.allocate((2, world * shard), like.dtype)
        self.sums = memory.allocate((2, shard), like.dtype)
        self.status = new_status(memory)
        counters = memory.allocate((2, world, row["programs"]), torch.int32).zero_()
        epoch = memory.allocate((1,), torch.int64).zero_()
        memory.barrier()  # before a peer counts here
        self._grid, self._options = (row["programs"],), {"num_warps": row["num_warps"]}
        self._memory = (self.staged, self.sums, elements, shard, memory.rank, memory.bases, epoch, counters)
        self._waits, self._constants = (self.status, spins), (world, row["shots"], row["block"])

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        arguments = (x, out, *self._memory, *self._waits, *self._constants)
        all_reduce_kernel[self._grid](*arguments, **self._options)


# --- From here on it is tuned.

SHOTS = {"one_shot": 1, "two_shot": 2}


def row_of(config: Config) -> Row:
    return {
        "shots": SHOTS[str(config["mode"])],
        **{name: int(config[name]) for name in ("programs", "block", "num_warps")},
    }


def config_of(row: Row) -> Config:
    (mode,) = (word for word, shots in SHOTS.items() if shots == row["shots"])
    return Config({"mode": mode, **{name: value for name, value in row.items() if name != "shots"}})


def has_a_block_each(s: Task[AllReduce], programs: int, block: int) -> bool:
    return programs == 1 or (programs - 1) * block < triton.cdiv(s.problem.elements, s.problem.world_size)


@dataclass(frozen=True, kw_only=True)
class AllReduce(Problem):
    """The sum over ranks of a tensor, on every rank."""

    workload = "launchers_all_reduce"
    free = ("elements",)
    elements: int = size("elements of X")


class Tensors(Operation):
    """One rank's X and result, and their launcher with one row."""

    def __init__(self, problem: AllReduce, memory: SymmetricHeap, spins: int) -> None:
        self._memory, self._mark, self._spins = memory, memory.mark(), spins
        self._launcher: Launcher | None = None
        dtype = TORCH_DTYPES[problem.dtype]
        self.x, self.out = (torch.empty(problem.elements, dtype=dtype, device=memory.device) for _ in range(2))

    def refresh(self, seed: int) -> None:
        ranks, x = self._memory.world_size, self.x
        every = torch.stack([drawn((len(x),), x.dtype, x.device, seed * ranks + rank) for rank in range(ranks)])
        x.copy_(every[self._memory.rank])
        self.expected = every.double().sum(0)
        written = [] if self._launcher is None else [self._launcher.staged, self._launcher.sums]
        for each in (self.out, *written):
            each.fill_(float("nan"))

    def inputs(self) -> list[torch.Tensor]:
        return [self.x]

    def outputs(self) -> list[torch.Tensor]:
        return [self.out]

    def prepare(self, config: Config) -> Callable[[], None]:
        self._memory.barrier()  # nobody calls the last one any more
        self._memory.release(self._mark)
        launcher = self._launcher = Launcher(self._memory, self.x, self._spins, row_of(config))
        return lambda: launcher(self.x, self.out)

    def error(self) -> Error:
        return distance(self.out, self.expected)

    def timed_out(self) -> bool:
        return self._launcher is not None and bool(self._launcher.status[0])


class TunedLauncher(Workload):
    problem_type = AllReduce
    space = Space(
        choices("mode", *SHOTS, help="one_shot: every rank reads all; two_shot: its share, then the others' sums"),
        numbers("programs", 1, 2, 4, 8, 16, 32, 64, help="their grid"),
        numbers("block", 128, 256, 512, 1024, 2048, 4096, help="elements that a program reads at once"),
        numbers("num_warps", 1, 2, 4, 8, help="warps of a program"),
        constraints=(
            Constraint("idle programs", ("programs", "block"), has_a_block_each, "a program would have nothing to do"),
        ),
    )

    def default_problem(self, machine: Machine, world_size: int) -> AllReduce:
        return AllReduce(elements=1024 if machine.is_interpreter else 1 << 20, world_size=world_size)

    def default_config(self, task: Task[AllReduce]) -> Config:
        config = config_of(row_for(TABLE, task.problem.elements))
        while self.space.violation(config, task) is not None:  # they start programs that have nothing to do
            config = config.replace(programs=int(config["programs"]) // 2)
        return config

    def first_configs(self, task: Task[AllReduce]) -> list[Config]:
        default = self.default_config(task)
        return [default, *(default.replace(mode=mode) for mode in SHOTS if mode != default["mode"])]

    def baselines(self, task: Task[AllReduce]) -> dict[str, Config]:
        return {"their table": self.default_config(task)}

    def operation(self, task: Task[AllReduce], heap: SymmetricHeap, spin_limit: int) -> Tensors:
        return Tensors(task.problem, heap, spin_limit)

    def heap_bytes(self, problem: AllReduce) -> int:
        return 4 * problem.elements * problem.element_size + (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="the file to write")
    parser.add_argument("--sizes", default="4096,65536,1048576", help="elements, the sizes of the table's rows")
    parser.add_argument("--trials", type=int, help="configs to try for each; by default as many as it takes")
    given = parser.parse_args()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    table = {}
    for elements in map(int, given.sizes.split(",")):
        problem = AllReduce(elements=elements, world_size=dist.get_world_size())
        found = autotune.tune(f"{__file__}:TunedLauncher", problem, trials=given.trials)
        assert found.entry is not None
        table[elements] = row_of(found.config)
        if dist.get_rank() == 0:
            winner = found.entry.winner
            theirs = winner.baselines["their table"].median
            print(f"{elements}: {table[elements]}: {winner.latency.median:.1f} µs, theirs {theirs:.1f}")
    if dist.get_rank() == 0:
        given.table.write_text(json.dumps(table, indent=2) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
