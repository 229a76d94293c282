"""Launching GEMM + reduce-scatter: from a problem, a config and its tensors to something that can be called repeatedly.

Modes: ``bsp``, ``own_collective`` and ``copy_engine`` call the library's GEMM, ``push`` and ``pull`` our kernel.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm_reduce_scatter import device
from autotune.kernels.gemm_reduce_scatter.copy_engine import CopyEngine
from autotune.kernels.gemm_reduce_scatter.library import bulk_synchronous, multiply_and_pull
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.gemm_reduce_scatter.scratch import Scratch
from autotune.kernels.launching.gemm import GemmKnobs, GemmTensors
from autotune.kernels.launching.graphs import enqueueing, graphed, replayed
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import share
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.kernels.primitives.barrier import barrier_kernel
from autotune.machine import Machine

LONGEST_VECTOR = 16
"""Elements that a thread loads at once, at most."""

SLOTS = 2
"""Places for the tiles under way, used in turn; see device.py."""

LIBRARY_GEMM = ("own_collective", "copy_engine")
"""Modes with scratch whose GEMM is the library's."""

LARGEST_BLOCK = 256
"""The largest tile has as many rows and as many columns."""


def allocate_scratch(
    problem: GemmReduceScatter, config: Config, machine: Machine, share: Allocate, own: Allocate
) -> Scratch:
    """The scratch of one config: ``share`` allocates on the heap, ``own`` on this rank's device alone."""
    world, ints = problem.world_size, torch.int32
    mode, product = config["mode"], (problem.m, problem.n)
    if mode in LIBRARY_GEMM:
        units, inbox = 0, (world, problem.rows, problem.n) if mode == "copy_engine" else (0,)
        partials, tickets = own((0,), torch.float32), own((0,), ints)
    else:
        knobs = GemmKnobs(config, machine)
        tiles = knobs.tiles(problem.rows, problem.n)
        units = math.ceil(tiles / config.integer("transfer_tiles"))
        inbox, product = (SLOTS * world * tiles, knobs.block_m, knobs.block_n), (0, 0)
        rows_of_tiles = world * math.ceil(problem.rows / knobs.block_m)
        partials, tickets = knobs.partials(rows_of_tiles * knobs.block_m, problem.n, own)
    dtype = TORCH_DTYPES[problem.dtype]
    return Scratch(
        epoch_counter=share((2,), ints),
        status=share((1,), ints),
        ready=share((world,), ints),
        done=share((world,), ints),
        arrivals=share((world, units), ints),
        inbox=share(inbox, dtype),
        sent=own((world, units), ints),
        product=(share if mode == "own_collective" else own)(product, dtype),
        partials=partials,
        tickets=tickets,
    )


def scratch_bytes(problem: GemmReduceScatter) -> int:
    """The most that any config of the problem allocates on the heap as scratch, with room for alignment."""
    rows, columns = _padded(problem.rows, 16), _padded(problem.n, 32)
    inbox = SLOTS * problem.world_size * rows * columns * problem.element_size
    arrivals = problem.world_size * math.ceil(rows / 16) * math.ceil(columns / 32) * 4
    return inbox + arrivals + (64 << 10)


def _padded(size: int, smallest: int) -> int:
    """The most that a dimension has once it is cut into whole blocks of ``smallest`` to LARGEST_BLOCK."""
    return max(smallest, min(size + LARGEST_BLOCK - 1, 1 << (size - 1).bit_length()))


def plan(
    problem: GemmReduceScatter, config: Config, machine: Machine, tensors: GemmTensors, scratch: Scratch,
    bases: torch.Tensor, rank: int, spin_limit: int,
) -> list[Launch]:  # fmt: skip
    """The kernel launches of one call, in order; ``copy_engine``: the one before its copies, the one after;
    ``own_collective``: the one after its GEMM.
    """
    builder = _Builder(problem, config, machine, tensors, scratch, bases, rank, spin_limit)
    mode = config["mode"]
    if mode in ("push", "pull"):
        return [builder.gemm_scatter()]
    if mode == "copy_engine":
        return [builder.enter(), builder.sum()]
    if mode == "own_collective":
        return [builder.pull_sum()]
    return []


@dataclass(frozen=True)
class _Builder:
    """The arguments that the kernels have in common."""

    problem: GemmReduceScatter
    config: Config
    machine: Machine
    tensors: GemmTensors
    scratch: Scratch
    bases: torch.Tensor
    rank: int
    spin_limit: int

    def common(self) -> dict[str, Any]:
        """What every kernel of ours has."""
        return {
            "rank": self.rank, "heap_bases": self.bases, "epoch_counter": self.scratch.epoch_counter,
            "status": self.scratch.status, "spin_limit": self.spin_limit, "WORLD": self.problem.world_size,
        }  # fmt: skip

    def bias(self) -> dict[str, Any]:
        """The bias, or something to pass in its place."""
        bias = self.tensors.bias
        return {"bias": bias if bias is not None else self.tensors.c, "BIAS": bias is not None}

    def gemm_scatter(self) -> Launch:
        """The fused kernel, one program a tile (or split of one), or persistent."""
        problem, config, scratch = self.problem, self.config, self.scratch
        knobs = GemmKnobs(config, self.machine)
        programs = problem.world_size * knobs.tiles(problem.rows, problem.n) * knobs.splits
        if config["schedule"] != "tile":
            # The interpreter runs programs one after another: two of which one waits for the other's peers would hang.
            programs = min(programs, 1 if self.machine.is_interpreter else self.machine.compute_units)
        resident = None if config["schedule"] == "tile" else programs
        arguments = {
            **knobs.common(self.tensors.b, self.tensors.c, problem.b_order == "nk", problem.k_local),
            **self.common(), **self.bias(),
            "a": knobs.a_operand(self.tensors.a), "M": problem.m, "N": problem.n, "K": problem.k_local,
            "rows": problem.rows, "inbox": scratch.inbox, "arrivals": scratch.arrivals, "sent": scratch.sent,
            "partials": scratch.partials, "tickets": scratch.tickets, "SPLITS": knobs.splits,
            "PULL": config["mode"] == "pull", "ROTATE": config["peer_order"] == "rotate",
            "TRANSFER_TILES": config.integer("transfer_tiles"), "LATE": config["signals"] == "next_turn",
            "FLATTEN": config["schedule"] == "flattened",
        }  # fmt: skip
        return Launch(device.gemm_scatter_kernel, programs, arguments, knobs.options, resident)

    def enter(self) -> Launch:
        """All ranks wait for each other, on the device, until every inbox may be written to."""
        arguments = self.common() | {"counters": self.scratch.ready, "FINISH": False}
        return Launch(barrier_kernel, 1, arguments, {"num_warps": 1})

    def sum(self) -> Launch:
        """The sum of all parts of our rows, in our inbox."""
        scratch, rows = self.scratch, self.problem.rows
        own = scratch.product[self.rank * rows : (self.rank + 1) * rows]
        return self._sum(device.sum_kernel, {"own": own, "inbox": scratch.inbox, "done": scratch.done})

    def pull_sum(self) -> Launch:
        """The sum of all parts of our rows, where the library's GEMMs left them."""
        scratch = self.scratch
        arguments = {"product": scratch.product, "ready": scratch.ready, "done": scratch.done}
        # Elements from which on addresses are known to be multiples: a rank's rows begin at a multiple of ``elements``.
        elements = self.problem.rows * self.problem.n
        return self._sum(device.pull_sum_kernel, arguments | {"HINT": math.gcd(elements, LONGEST_VECTOR)})

    def _sum(self, kernel: Any, arguments: dict[str, Any]) -> Launch:
        """Each program takes ``sum_block`` elements of C."""
        elements, block = self.problem.rows * self.problem.n, self.config.integer("sum_block")
        common = {**self.common(), **self.bias(), "c": self.tensors.c, "elements": elements, "N": self.problem.n}
        options = {"num_warps": self.config.integer("sum_warps")}
        return Launch(kernel, math.ceil(elements / block), {**common, **arguments, "BLOCK": block}, options)


def share_scratch(
    problem: GemmReduceScatter, config: Config, machine: Machine, heap: SymmetricHeap
) -> Scratch | None:  # fmt: skip
    """Allocate the scratch of a config, all of it zero; None for ``bsp``, which has none. Collective."""
    if config["mode"] == "bsp":
        return None
    return share(heap, functools.partial(allocate_scratch, problem, config, machine))


def bind(
    problem: GemmReduceScatter, config: Config, machine: Machine, tensors: GemmTensors, scratch: Scratch | None,
    heap: SymmetricHeap, spin_limit: int,
) -> Run:  # fmt: skip
    """What enqueues one call of a config on these tensors. Several bindings may take turns on one scratch.

    Collective for ``bsp`` as a CUDA graph, which is captured here.
    """
    if scratch is None:
        run = bulk_synchronous(problem, tensors)
        return graphed(run) if config["launch"] == "graph" else run
    launches = plan(problem, config, machine, tensors, scratch, heap.bases, heap.rank, spin_limit)
    if config["mode"] == "copy_engine":
        return replayed(CopyEngine(problem, config, tensors, scratch, heap, launches), heap)
    if config["mode"] == "own_collective":
        return replayed(functools.partial(multiply_and_pull, tensors, scratch.product, launches[0]), heap)
    return enqueueing(launches, heap)
