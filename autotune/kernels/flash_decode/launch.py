"""Launches flash decode: its scratch, the launches of each mode, and their order.

Every mode is made of the same kernels: attention, the reduction of its parts (in the attention's launch or after it),
the exchange (the library's, a push kernel, or the reduction itself) and the combination.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.dtypes import WGMMA_ROWS
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.flash_decode import device, exchange
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.flash_decode.tensors import Records, Scratch, Tensors
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.knobs import MEMORY, LadderKnobs
from autotune.kernels.launching.one_program import empty_launches
from autotune.kernels.launching.plan import Launch, in_order
from autotune.kernels.launching.scratch import wire_type
from autotune.kernels.launching.specialized import OPTIONS
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.task import Task

REDUCERS = {"kernel": device.ELSEWHERE, "last": device.LAST, "trailing": device.TRAILING}

ONE_SHOT = {"signal": exchange.ONE_SHOT, "ll": exchange.ONE_SHOT_LL, "sentinel": exchange.ONE_SHOT_SENTINEL}
"""Deliveries of the one-shot exchange by the config's word for the protocol."""

MERGED_ELEMENTS = 32
"""Elements of parts that a merging thread holds at a time."""

SCANS = (1, 32, 512)
"""Sequences that a program scans at once, few kinds to compile: a single one without a scan, those of a warp without
shared memory.
"""

SMALL_KERNEL_WARPS = 4
"""Warps of the kernels that only reduce, push or combine."""

LOADING_WARPS = 4
"""Warps that only load, beside eight that multiply."""


@dataclass(frozen=True, kw_only=True)
class FlashDecodeKnobs(LadderKnobs):
    """Every mode has those without a default; where one lacks another, it has no effect as it is here."""

    launch: str = "eager"
    block_n: int
    programs_per_head: int
    heads_per_program: int
    num_warps: int
    num_stages: int
    loads: str = "pipelined"
    table_reads: str
    program_order: str
    reducer: str
    transfer_heads: int = 0
    """0: the exchange is the library's, in units of one tile."""
    combine_heads: int
    wire: str
    exchange: str = "one_shot"
    combine_site: str = "next_launch"
    protocol: str = "signal"


DecodeCall = Call[FlashDecode, FlashDecodeKnobs, Tensors, Scratch]


@dataclass(frozen=True)
class Units:
    """A config's partition of the output rows into groups, units and tiles (see ``device.py``)."""

    heads_per_program: int
    transfer_heads: int
    tile: int
    blocks: int
    """Blocks of a KV head's query heads."""
    head_blocks: int
    """Head blocks of all KV heads; one sequence has as many groups."""
    groups: int

    @classmethod
    def of(cls, problem: FlashDecode, knobs: FlashDecodeKnobs) -> Units:
        """A config whose exchange is the library's has units of one tile."""
        heads, tile = knobs.heads_per_program, knobs.combine_heads
        blocks = math.ceil(problem.group / heads)
        head_blocks = problem.kv_heads * blocks
        return cls(heads, knobs.transfer_heads or tile, tile, blocks, head_blocks, problem.batch * head_blocks)

    @property
    def of_group(self) -> int:
        return self.heads_per_program // self.transfer_heads

    @property
    def count(self) -> int:
        return self.groups * self.of_group


class FlashDecodeKernels(Kernels[FlashDecode, FlashDecodeKnobs, Tensors, Scratch]):
    knobs = FlashDecodeKnobs
    tensors_type = Tensors

    def tensors(self, problem: FlashDecode, shared: Allocate, own: Allocate) -> Tensors:
        return Tensors.allocate(problem, own)

    def scratch(self, task: Task[FlashDecode], knobs: FlashDecodeKnobs, shared: Allocate, own: Allocate) -> Scratch:
        """Counters, inbox and parts, in every mode."""
        problem = task.problem
        ints, fp32, dtype = torch.int32, torch.float32, TORCH_DTYPES[problem.dtype]
        units, world = Units.of(problem, knobs), problem.world_size
        parts = problem.batch + knobs.programs_per_head - 1
        if problem.invariant:
            parts = problem.batch * knobs.programs_per_head
        wire = dtype if knobs.wire == "rounded" else fp32
        sent, sent_lse = wire_type(knobs.protocol, wire), wire_type(knobs.protocol, fp32)
        outbox_rows = 2 * problem.rows if knobs.exchange == "two_shot" else 0
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            arrived=shared((units.count,), ints),
            arrivals=shared((world, units.count), ints),
            returns=shared((units.count,), ints),
            inbox=Records.allocate(problem, world, wire, fp32, own)
            if knobs.mode == "bsp"
            else Records.allocate(problem, 2 * world, sent, sent_lse, shared),
            outbox=shared((outbox_rows, problem.head_dim), dtype),
            mine=Records.allocate(problem, world if problem.owned_heads else 1, wire, fp32, own),
            parts=own((parts, problem.q_heads, problem.head_dim), fp32),
            part_lse=own((parts, problem.q_heads), fp32),
        )

    def scratch_bytes(self, problem: FlashDecode) -> int:
        inbox = 2 * problem.world_size * Records.block_bytes(problem, torch.int64, torch.int64)
        outbox = 2 * problem.rows * problem.head_dim * problem.element_size
        # Units of one head: padding a group to its program's heads at most doubles their number.
        counters = 4 * 2 * problem.rows * (problem.world_size + 2)
        return inbox + outbox + counters + (64 << 10)

    def plan(self, call: DecodeCall) -> list[Launch]:
        """Launches; in ``bsp`` the library's exchange comes before the last."""
        return _Planner(call).launches()

    def run(self, call: DecodeCall, launches: list[Launch], heap: SymmetricHeap) -> Run:
        """Collective for ``bsp`` as a CUDA graph."""
        if call.knobs.mode != "bsp":
            return in_order(launches)
        run: Run = functools.partial(_bulk_synchronous, launches, call)
        return graphed(run) if call.knobs.launch == "graph" else run


KERNELS = FlashDecodeKernels()


def _bulk_synchronous(launches: list[Launch], call: DecodeCall) -> None:
    in_order(launches[:-1])()
    library_exchange(call.problem, call.scratch, call.group)
    launches[-1].run()


def library_exchange(problem: FlashDecode, scratch: Scratch, group: Any = None) -> None:
    """The library's all-gather of the records or, where heads have owners, its all-to-all."""
    collective = torch.distributed.all_to_all_single if problem.owned_heads else all_gather_single
    collective(scratch.inbox.buffer, scratch.mine.buffer, group=group)


def _delivery(knobs: FlashDecodeKnobs) -> Any:
    """The destination of a pushing config's partial results."""
    return exchange.TWO_SHOT if knobs.exchange == "two_shot" else ONE_SHOT[knobs.protocol]


@dataclass(frozen=True)
class _Planner:
    """The launches of one call, and the arguments that the kernels have in common."""

    call: DecodeCall

    def launches(self) -> list[Launch]:
        knobs = self.call.knobs
        between = empty_launches(knobs.empty_launches)
        if knobs.mode == "bsp":
            return [*self.local(exchange.KEEP), *between, self.combine(wait=False)]
        if knobs.mode == "iris_all_gather":
            return [*self.local(exchange.KEEP), *between, self.push(wait=True), self.combine(wait=False)]
        if knobs.mode == "fine_grained_wait":
            return [*self.local(exchange.KEEP), self.push(wait=False), self.combine(wait=True)]
        if knobs.combine_site == "same_launch":
            return self.local(_delivery(knobs), combine=True)
        return [*self.local(_delivery(knobs)), self.combine(wait=True)]

    def local(self, to: Any, combine: bool = False) -> list[Launch]:
        """Attention, the reduction of its parts and their delivery; ``combine``: and the combination."""
        knobs, problem, tensors, units = self.call.knobs, self.call.problem, self.call.tensors, self.units
        reducer = REDUCERS[knobs.reducer]
        attending = units.head_blocks * knobs.programs_per_head
        arguments = self.common(knobs.num_warps) | self.own_records | self.reduction | {
            "q": tensors.q, "keys": tensors.k_cache, "values": tensors.v_cache, "table": tensors.block_table,
            "out": tensors.out, "key_scales": tensors.scales[0],
            "value_scales": tensors.scales[1], "SCALE_OF_HEAD": problem.kv_scales == "head",
            "scale": problem.logit_scale * math.log2(math.e), "head_blocks": units.head_blocks,
            "table_width": problem.pages, "arrived": self.call.scratch.arrived,
            "HEADS": max(16, knobs.heads_per_program), "PAGE": problem.page_size, "ROPE": problem.rope,
            "CAP": problem.soft_cap, "AHEAD": knobs.table_reads == "ahead",
            "HEADS_FIRST": knobs.program_order == "heads", "REDUCER": reducer.value, "DELIVERY": to.value,
            "COMBINE": combine, "finishing": units.groups if reducer == device.LAST else units.count,
            "MEMORY": knobs.handover == MEMORY,
        }  # fmt: skip
        options = {"num_warps": knobs.num_warps, "num_stages": knobs.num_stages}
        trailing = units.count if reducer == device.TRAILING else 0
        arguments["trace"] = knobs.trace_of(attending + trailing, tensors.out)
        if knobs.loads == "specialized":
            launches = [self.specialized(attending, arguments)]
        else:
            launches = [Launch(device.attend_kernel, attending + trailing, arguments, options)]
        if reducer == device.ELSEWHERE:
            arguments = self.common() | self.own_records | self.reduction | {
                "out": tensors.out, "DELIVERY": to.value, "COMBINE": combine, "finishing": units.count
            }  # fmt: skip
            launches.append(self.small(device.reduce_kernel, arguments))
        return launches

    def specialized(self, programs: int, arguments: dict[str, Any]) -> Launch:
        """The attention alone, by warps with roles; ``arguments`` are those of ``device.attend_kernel``."""
        from autotune.kernels.flash_decode.specialized_kernel import specialized_kernel  # Gluon, which few need

        its = {name: value for name, value in arguments.items() if name in specialized_kernel.arg_names} | {
            "HEADS": WGMMA_ROWS, "STAGES": self.call.knobs.num_stages, "LOADING": LOADING_WARPS,
        }  # fmt: skip
        return Launch(specialized_kernel, programs, its, OPTIONS)

    def push(self, wait: bool) -> Launch:
        """Our own all-gather as a separate launch; without ``wait`` only its sending half."""
        arguments = self.common() | self.own_records | {"DELIVERY": _delivery(self.call.knobs).value, "WAIT": wait}
        for name in ("total_rows", "outbox", "returns", "CHUNK"):
            del arguments[name]
        return self.small(device.push_kernel, arguments)

    def combine(self, wait: bool) -> Launch:
        """The combination as a separate launch, the last of a call."""
        arguments = self.common() | {
            "out": self.call.tensors.out, "finishing": self.units.count, "DELIVERY": _delivery(self.call.knobs).value,
            "SLOTS": 1 if self.call.knobs.mode == "bsp" else 2, "WAIT": wait,
        }  # fmt: skip
        return self.small(device.combine_kernel, arguments)

    def small(self, kernel: Any, arguments: dict[str, Any]) -> Launch:
        return Launch(kernel, self.units.count, arguments, {"num_warps": SMALL_KERNEL_WARPS})

    @property
    def units(self) -> Units:
        return Units.of(self.call.problem, self.call.knobs)

    def common(self, warps: int = SMALL_KERNEL_WARPS) -> dict[str, Any]:
        """Arguments of all combining kernels, with ``warps`` per program."""
        problem, scratch, units = self.call.problem, self.call.scratch, self.units
        inbox = scratch.inbox
        return {
            "units": units.count, "total_rows": problem.rows, "heads_of_group": problem.group,
            "inbox": inbox.values, "inbox_lse": inbox.lse,
            "value_stride": inbox.value_stride, "lse_stride": inbox.lse_stride, "outbox": scratch.outbox,
            "epoch_counter": scratch.epoch_counter, "arrivals": scratch.arrivals, "returns": scratch.returns,
            "rank": self.call.rank, "heap_bases": self.call.bases, "status": self.call.status,
            "spin_limit": self.call.spin_limit,
            "D": problem.head_dim, "UNITS": units.of_group, "BLOCKS": units.blocks, "HPP": units.heads_per_program,
            "TRANSFER_HEADS": units.transfer_heads, "TILE": units.tile, "CHUNK": self.chunk(warps, problem.world_size),
            "WORLD": problem.world_size, "OWNED": problem.owned_heads,
        }  # fmt: skip

    @property
    def own_records(self) -> dict[str, Any]:
        """Arguments of the kernels that deliver."""
        return {"mine": self.call.scratch.mine.values, "mine_lse": self.call.scratch.mine.lse}

    @property
    def reduction(self) -> dict[str, Any]:
        """Arguments of the kernels that reduce parts."""
        knobs, problem, scratch = self.call.knobs, self.call.problem, self.call.scratch
        warps = SMALL_KERNEL_WARPS if knobs.reducer == "kernel" else knobs.num_warps
        return {
            "lengths": self.call.tensors.lengths, "batch": problem.batch, "programs": knobs.programs_per_head,
            "kv_heads": problem.kv_heads, "BLOCK_N": knobs.block_n,
            "SCAN": next(count for count in SCANS if problem.batch <= count or count == SCANS[-1]),
            "parts": scratch.parts, "part_lse": scratch.part_lse, "PART_CHUNK": self.chunk(warps, MERGED_ELEMENTS),
            "APART": problem.invariant,
        }  # fmt: skip

    def chunk(self, warps: int, most: int) -> int:
        """Parts that a merge loads at a time: a power of two, limited by ``most`` and the registers. Under the
        interpreter two: it computes with those that are not there, too.
        """
        if self.call.machine.is_interpreter:
            return min(2, most)
        threads = warps * self.call.machine.warp_size
        fitting = MERGED_ELEMENTS * threads // (self.units.tile * self.call.problem.head_dim)
        return 1 << max(0, min(fitting.bit_length() - 1, (most - 1).bit_length()))
