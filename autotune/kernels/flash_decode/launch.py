"""Launching flash decode: from a problem, a config and its tensors to something that can be called repeatedly.

Every mode is made of the same kernels: attention, the reduction of its splits (in the attention's launch or after it),
the exchange (the library's, a push kernel, or the reduction itself) and the combination.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.flash_decode import device, exchange
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.flash_decode.tensors import Records, Scratch, Tensors
from autotune.kernels.launching.graphs import enqueueing, graphed
from autotune.kernels.launching.plan import Launch, run_all
from autotune.kernels.launching.scratch import share
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.machine import Machine

REDUCERS = {"kernel": device.ELSEWHERE, "last": device.LAST, "trailing": device.TRAILING}

MERGED_ELEMENTS = 32
"""Elements of the parts that a thread of a merge holds at a time."""

SMALL_KERNEL_WARPS = 4
"""Of the kernels that only reduce, push or combine."""


@dataclass(frozen=True)
class Units:
    """How a config cuts the output rows into groups, units and tiles (see ``device.py``)."""

    heads_per_program: int
    transfer_heads: int
    tile: int
    blocks: int
    """Groups of one KV head of one sequence."""
    groups: int

    @classmethod
    def of(cls, problem: FlashDecode, config: Config) -> Units:
        """A config whose exchange is the library's has units of one tile."""
        heads, tile = config.integer("heads_per_program"), config.integer("combine_heads")
        transfer_heads = config.integer("transfer_heads") if "transfer_heads" in config else tile
        blocks = -(-problem.group // heads)
        return cls(heads, transfer_heads, tile, blocks, problem.batch * problem.kv_heads * blocks)

    @property
    def of_group(self) -> int:
        """Units of one group."""
        return self.heads_per_program // self.transfer_heads

    @property
    def count(self) -> int:
        """Units of the problem."""
        return self.groups * self.of_group


def delivery(config: Config) -> Any:
    """Where the partial results of a config that pushes go."""
    if config.get("exchange") == "two_shot":
        return exchange.TWO_SHOT
    return exchange.ONE_SHOT_LL if config.get("protocol") == "ll" else exchange.ONE_SHOT


def allocate_scratch(problem: FlashDecode, config: Config, shared: Allocate, own: Allocate) -> Scratch:
    """The scratch of one config: from a heap's ``allocate``, and from one for ordinary memory."""
    ints, fp32, dtype = torch.int32, torch.float32, TORCH_DTYPES[problem.dtype]
    units, world = Units.of(problem, config), problem.world_size
    wire = dtype if config.get("wire") == "rounded" else fp32
    ll = config.get("protocol") == "ll"
    sent, sent_lse = (torch.int64, torch.int64) if ll else (wire, fp32)
    by_library = config["mode"] == "bsp"
    splits = config.integer("kv_splits")
    outbox_rows = 2 * problem.rows if config.get("exchange") == "two_shot" else 0
    return Scratch(
        epoch_counter=shared((2,), ints),
        status=shared((1,), ints),
        arrived=shared((units.groups,), ints),
        arrivals=shared((world, units.count), ints),
        returns=shared((units.count,), ints),
        inbox=Records.allocate(problem, world, wire, fp32, own)
        if by_library
        else Records.allocate(problem, 2 * world, sent, sent_lse, shared),
        outbox=shared((outbox_rows, problem.head_dim), dtype),
        mine=Records.allocate(problem, 1, wire, fp32, own),
        parts=own((splits, problem.rows, problem.head_dim), fp32),
        part_lse=own((splits, problem.rows), fp32),
    )


def scratch_bytes(problem: FlashDecode) -> int:
    """The most of the heap that any config of the problem allocates: LL words, and an outbox."""
    inbox = 2 * problem.world_size * Records.source_bytes(problem, torch.int64, torch.int64)
    outbox = 2 * problem.rows * problem.head_dim * problem.element_size
    # Units of one head: padding a group to its program's heads at most doubles their number.
    counters = 4 * 2 * problem.rows * (problem.world_size + 2)
    return inbox + outbox + counters + (64 << 10)


@dataclass(frozen=True)
class Planner:
    """The launches of one call, and the arguments that the kernels have in common."""

    problem: FlashDecode
    config: Config
    machine: Machine
    tensors: Tensors
    scratch: Scratch
    bases: torch.Tensor
    rank: int
    spin_limit: int

    def launches(self) -> list[Launch]:
        """In order; in ``bsp`` the library's all-gather comes before the last."""
        mode = self.config["mode"]
        if mode == "bsp":
            return [*self.local(exchange.KEEP), self.combine(wait=False)]
        if mode == "iris_all_gather":
            return [*self.local(exchange.KEEP), self.push(wait=True), self.combine(wait=False)]
        if mode == "fine_grained_wait":
            return [*self.local(exchange.KEEP), self.push(wait=False), self.combine(wait=True)]
        if self.config["combine_site"] == "same_launch":
            return self.local(delivery(self.config), combine=True)
        return [*self.local(delivery(self.config)), self.combine(wait=True)]

    def local(self, to: Any, combine: bool = False) -> list[Launch]:
        """Attention, the reduction of its splits and its delivery; ``combine``: and the combination."""
        config, problem, tensors, units = self.config, self.problem, self.tensors, self.units
        reducer = REDUCERS[str(config["reducer"])]
        heads = config.integer("heads_per_program")
        attending = units.groups * config.integer("kv_splits")
        arguments = self.common(config.integer("num_warps")) | self.own_records | self.reduction | {
            "q": tensors.q, "keys": tensors.keys, "values": tensors.values, "table": tensors.table,
            "lengths": tensors.lengths, "out": tensors.out,
            "scale": problem.head_dim**-0.5 * math.log2(math.e), "groups": units.groups,
            "kv_heads": problem.kv_heads, "table_width": problem.pages, "arrived": self.scratch.arrived,
            "HEADS": max(16, heads), "BLOCK_N": config.integer("block_n"), "PAGE": problem.page_size,
            "CAP": problem.soft_cap, "AHEAD": config["table_reads"] == "ahead",
            "HEADS_FIRST": config["program_order"] == "heads", "REDUCER": reducer.value, "DELIVERY": to.value,
            "COMBINE": combine, "finishing": units.groups if reducer == device.LAST else units.count,
        }  # fmt: skip
        options = {name: config.integer(name) for name in ("num_warps", "num_stages")}
        trailing = units.count if reducer == device.TRAILING else 0
        launches = [Launch(device.attend_kernel, attending + trailing, arguments, options)]
        if reducer == device.ELSEWHERE:
            arguments = self.common() | self.own_records | self.reduction | {
                "out": tensors.out, "DELIVERY": to.value, "COMBINE": combine, "finishing": units.count
            }  # fmt: skip
            launches.append(self.small(device.reduce_kernel, arguments))
        return launches

    def push(self, wait: bool) -> Launch:
        """The all-gather of our own, by itself; without ``wait`` only its sending half."""
        arguments = self.common() | self.own_records | {"DELIVERY": delivery(self.config).value, "WAIT": wait}
        for name in ("total_rows", "outbox", "returns", "CHUNK"):
            del arguments[name]
        return self.small(device.push_kernel, arguments)

    def combine(self, wait: bool) -> Launch:
        """The combination, by itself; the last launch of a call."""
        arguments = self.common() | {
            "out": self.tensors.out, "finishing": self.units.count, "DELIVERY": delivery(self.config).value,
            "SLOTS": 1 if self.config["mode"] == "bsp" else 2, "WAIT": wait,
        }  # fmt: skip
        return self.small(device.combine_kernel, arguments)

    def small(self, kernel: Any, arguments: dict[str, Any]) -> Launch:
        """One program a unit."""
        return Launch(kernel, self.units.count, arguments, {"num_warps": SMALL_KERNEL_WARPS})

    @property
    def units(self) -> Units:
        """How the rows are cut."""
        return Units.of(self.problem, self.config)

    def common(self, warps: int = SMALL_KERNEL_WARPS) -> dict[str, Any]:
        """Arguments of all kernels that combine, in programs of so many warps."""
        problem, scratch, units = self.problem, self.scratch, self.units
        inbox = scratch.inbox
        return {
            "units": units.count, "total_rows": problem.rows, "heads_of_group": problem.group,
            "inbox": inbox.values, "inbox_lse": inbox.lse,
            "value_stride": inbox.value_stride, "lse_stride": inbox.lse_stride, "outbox": scratch.outbox,
            "epoch_counter": scratch.epoch_counter, "arrivals": scratch.arrivals, "returns": scratch.returns,
            "rank": self.rank, "heap_bases": self.bases, "status": scratch.status, "spin_limit": self.spin_limit,
            "D": problem.head_dim, "UNITS": units.of_group, "BLOCKS": units.blocks, "HPP": units.heads_per_program,
            "TRANSFER_HEADS": units.transfer_heads, "TILE": units.tile, "CHUNK": self.chunk(warps, problem.world_size),
            "WORLD": problem.world_size,
        }  # fmt: skip

    @property
    def own_records(self) -> dict[str, Any]:
        """Arguments of the kernels that deliver."""
        return {"mine": self.scratch.mine.values, "mine_lse": self.scratch.mine.lse}

    @property
    def reduction(self) -> dict[str, Any]:
        """Arguments of the kernels that reduce splits."""
        warps = SMALL_KERNEL_WARPS if self.config["reducer"] == "kernel" else self.config.integer("num_warps")
        return {
            "splits": self.config.integer("kv_splits"), "parts": self.scratch.parts, "part_lse": self.scratch.part_lse,
            "PART_CHUNK": self.chunk(warps, MERGED_ELEMENTS),
        }  # fmt: skip

    def chunk(self, warps: int, most: int) -> int:
        """Parts that a merge loads at a time: a power of two, no more than all of ``most`` and than registers allow."""
        threads = warps * self.machine.warp_size
        fitting = MERGED_ELEMENTS * threads // (self.units.tile * self.problem.head_dim)
        return 1 << max(0, min(fitting.bit_length() - 1, (most - 1).bit_length()))


def plan(
    problem: FlashDecode, config: Config, machine: Machine, tensors: Tensors, scratch: Scratch,
    bases: torch.Tensor, rank: int, spin_limit: int,
) -> list[Launch]:  # fmt: skip
    """The kernel launches of one call, in order."""
    return Planner(problem, config, machine, tensors, scratch, bases, rank, spin_limit).launches()


def share_scratch(problem: FlashDecode, config: Config, machine: Machine, heap: SymmetricHeap) -> Scratch:
    """Allocate a config's scratch, what ranks share on the heap; all of it zero. Collective."""
    return share(heap, functools.partial(allocate_scratch, problem, config))


def bind(
    problem: FlashDecode, config: Config, machine: Machine, tensors: Tensors, scratch: Scratch, heap: SymmetricHeap,
    spin_limit: int,
) -> Run:  # fmt: skip
    """What enqueues one call of a config on these tensors. Collective for ``bsp`` as a CUDA graph."""
    launches = plan(problem, config, machine, tensors, scratch, heap.bases, heap.rank, spin_limit)
    if config["mode"] != "bsp":
        return enqueueing(launches, heap)
    run: Run = functools.partial(_bulk_synchronous, launches, scratch)
    return graphed(run) if config["launch"] == "graph" else run


def _bulk_synchronous(launches: list[Launch], scratch: Scratch) -> None:
    run_all(launches[:-1])
    gather(scratch)
    launches[-1].run()


def gather(scratch: Scratch) -> None:
    """The library's all-gather of the records."""
    torch.distributed.all_gather_into_tensor(scratch.inbox.buffer, scratch.mine.buffer)
