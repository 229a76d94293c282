"""Launches all-gather + GEMM: the scratch of each mode, its launches, and their order.

``bsp``, ``own_collective`` and ``copy_engine`` call the library's GEMM; ``pull``, ``pull_staged`` and ``push`` ours.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm.chunks import signal_chunk_kernel, wait_for_chunk_kernel
from autotune.kernels.all_gather_gemm.copy_engine import CopyEngine, rounds
from autotune.kernels.all_gather_gemm.device import FETCH, NONE, PUSH, gather_gemm_kernel
from autotune.kernels.all_gather_gemm.library import bulk_synchronous, gather_and_multiply
from autotune.kernels.all_gather_gemm.problem import EPILOGUES, MOST_WORD_BYTES, AllGatherGemm
from autotune.kernels.all_gather_gemm.pull import pull_gemm_kernel
from autotune.kernels.all_gather_gemm.push import gather_kernel, gather_words_kernel, push_kernel, return_kernel
from autotune.kernels.all_gather_gemm.scratch import Scratch
from autotune.kernels.all_gather_gemm.tensors import GatherTensors, QuantisedTensors, returned_of, scales_of_c
from autotune.kernels.gemm.problem import blocks
from autotune.kernels.gemm.tile import GemmKnobs
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.empty import empty_launches
from autotune.kernels.launching.gemm import GemmTensors, halves_constant, readable
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.plan import Launch, in_order
from autotune.kernels.launching.scratch import wire_type
from autotune.kernels.launching.sealing import seal_launch
from autotune.kernels.launching.streams import side_stream
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate, Run
from autotune.kernels.primitives.barrier import barrier_kernel
from autotune.machine import Machine

MOST_CHUNKS = 16
"""The largest value of ``k_chunks``; units have at least 16 rows."""

MOST_SPLIT_ROW = 64
"""Elements: a row whose largest power-of-two factor is at least this is moved in such pieces, another one whole."""

BLOCK = 2048
"""Elements that a program copies of the gathered A."""


@dataclass(frozen=True, kw_only=True)
class AllGatherGemmKnobs(GemmKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    preload_b: bool = False
    peer_order: str = "rotate"
    push_site: str = "same_launch"
    protocol: str = "signal"
    copies: str = "pulled"
    chunk_sizes: str = "even"

    @property
    def read_by_peers(self) -> bool:
        """True if peers read our shard where it lies: at the same place on the symmetric heap on every rank."""
        return self.mode in ("pull", "pull_staged") or (self.mode == "copy_engine" and self.copies == "pulled")

    @property
    def slots(self) -> int:
        """Inboxes used in turn, a power of two: two where peers push into them, one where only we write."""
        return 2 if self.mode == "push" else 1


GatherCall = Call[AllGatherGemm, AllGatherGemmKnobs, GemmTensors, Scratch]


class AllGatherGemmKernels(Kernels[AllGatherGemm, AllGatherGemmKnobs, GemmTensors, Scratch]):
    knobs = AllGatherGemmKnobs
    tensors_type = GemmTensors
    results: tuple[str, ...] = ("c",)

    def tensors(self, problem: AllGatherGemm, shared: Allocate, own: Allocate) -> GemmTensors:
        """A's shard lies on the heap if the problem says so."""
        a = (shared if problem.in_place else own)(problem.shard, OPERAND_DTYPES[problem.dtype])
        gemm = GemmTensors.allocate(problem, a, (problem.k, problem.n_local), (problem.m, problem.columns), own)
        if problem.quantised:
            c = own(gemm.c.shape, OPERAND_DTYPES[problem.quantised_dtype])
            scales = own((problem.m, blocks(problem.columns)), torch.float32)
            return QuantisedTensors(**{**vars(gemm), "c": c}, c_scales=scales)
        if not problem.gathered:
            return gemm
        return GatherTensors(**vars(gemm), gathered=own((problem.m, problem.k), a.dtype))

    def scratch(
        self, problem: AllGatherGemm, knobs: AllGatherGemmKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> Scratch | None:
        """Counters and inboxes; None for ``bsp``."""
        if knobs.mode == "bsp":
            return None
        whole = knobs.mode == "own_collective"
        staged = whole or knobs.transfer_rows > 0
        units = 1 if whole else math.ceil(problem.shard[0] / knobs.transfer_rows) if staged else 0
        ints = torch.int32
        rows = knobs.slots * problem.m * staged
        partials, tickets = knobs.partials(problem.m, problem.n_local, own)
        dtype, words = OPERAND_DTYPES[problem.dtype], (2, problem.world_size, math.prod(problem.shard))
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            ready=shared((problem.world_size,), ints),
            done=shared((problem.world_size,), ints),
            arrivals=shared((knobs.k_chunks, problem.world_size, units), ints),
            inbox=shared((rows, problem.k), dtype),
            scale_inbox=shared((rows, problem.scale_columns), torch.float32) if problem.gathers_scales else None,
            words=shared(words, wire_type("sentinel", dtype)) if knobs.protocol == "sentinel" else None,
            partials=partials,
            tickets=tickets,
            phase=own((1,), ints) if knobs.phased else None,
        )

    def scratch_bytes(self, problem: AllGatherGemm) -> int:
        """Two inboxes, or one and two slots of words, and the counters of the smallest units; with scales, theirs and a
        copy of ours.
        """
        rows, _ = problem.shard
        scales = 3 * problem.m * problem.scale_columns * 4 if problem.gathers_scales else 0
        arrivals = MOST_CHUNKS * problem.world_size * rows * 4 // 16 + 1024
        whole = problem.m * problem.k * problem.element_size
        return (3 if whole <= MOST_WORD_BYTES else 2) * whole + scales + arrivals + (64 << 10)

    def plan(self, call: GatherCall) -> list[Launch]:
        """A push in its own launch comes before the GEMM. ``copy_engine``: the launch before its copies, and the one
        after or, pushed, a signal and a wait for each chunk; at last the seal. ``own_collective``: the launch before
        its GEMM. Where the gathered A is a result, our GEMM is followed by the launch that copies it.
        """
        mode, scratch = call.knobs.mode, call.scratch
        if mode == "pull":
            return [_pull(call)]
        if mode == "own_collective":
            return [_gather(call) if scratch.words is None else _gather_words(call)]
        if mode == "copy_engine":
            enter, seal = _barrier(call, scratch.ready, finish=False), seal_launch(call.status, call.tensors.c)
            if call.knobs.copies == "pushed":
                return [enter, *_signals_and_waits(call), seal]
            return [enter, _barrier(call, scratch.done, finish=True), seal]
        launches = _gather_gemm(call)
        returned = returned_of(call.tensors)
        return launches if returned is None else [*launches, _return(call, returned, launches[-1])]

    def run(self, call: GatherCall, launches: list[Launch], heap: SymmetricHeap) -> Run:
        """The library's GEMM after our launch, or between them; or the push on a stream beside the GEMM."""
        knobs = call.knobs
        if knobs.mode == "copy_engine":
            return CopyEngine(
                call.problem, call.tensors, call.scratch, launches, heap, returned_of(call.tensors),
                transfer_rows=knobs.transfer_rows, streams=knobs.gemm_streams,
                shrinking=knobs.chunk_sizes == "shrinking", pushed=knobs.copies == "pushed",
            )  # fmt: skip
        if knobs.mode == "own_collective":
            returned = returned_of(call.tensors)
            return functools.partial(
                gather_and_multiply, launches[0], call.problem, call.tensors, call.scratch, returned
            )
        if knobs.push_site == "side_stream" and heap.device.type == "cuda":
            push, *others = launches
            copies = [] if returned_of(call.tensors) is None else [others.pop()]
            return _SideStream(push, in_order(others), in_order(copies), side_stream(heap, "push"))
        return in_order(launches)

    def readable(
        self, problem: AllGatherGemm, knobs: AllGatherGemmKnobs, name: str, operand: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        """A is sent without gaps; but where peers read a copy of it anyway, that is made from A of any strides."""
        if name == "a" and knobs.read_by_peers and not problem.in_place:
            return operand
        return readable(name, operand)

    def library(self, call: Call[AllGatherGemm, AllGatherGemmKnobs, GemmTensors, None]) -> Run:
        assert call.heap is not None
        run = bulk_synchronous(
            call.problem, call.tensors, call.heap, empty_launches(call.knobs.empty_launches), returned_of(call.tensors)
        )
        return graphed(run) if call.knobs.launch == "graph" else run

    def read_by_peers(self, problem: AllGatherGemm, knobs: AllGatherGemmKnobs) -> tuple[int, int] | None:
        """The shard, if peers pull or copy it, and whenever the caller writes it in place."""
        return problem.shard if problem.in_place or knobs.read_by_peers else None

    def also_read_by_peers(self, problem: AllGatherGemm, knobs: AllGatherGemmKnobs) -> tuple[str, ...]:
        """The scales of the shard, if peers pull or copy it."""
        return ("scale_a",) if problem.gathers_scales and knobs.read_by_peers else ()


class ReturningKernels(AllGatherGemmKernels):
    """Kernels that return the gathered A as a second result."""

    tensors_type = GatherTensors
    results = ("c", "gathered")


class QuantisingKernels(AllGatherGemmKernels):
    """Kernels that return C in fp8, its scales as a second result."""

    tensors_type = QuantisedTensors
    results = ("c", "c_scales")


KERNELS = AllGatherGemmKernels()
RETURNING = ReturningKernels()
QUANTISING = QuantisingKernels()


def _return(call: GatherCall, returned: torch.Tensor, gemm: Launch) -> Launch:
    """The copy of the gathered A behind the GEMM that has waited for it."""
    problem, scratch = call.problem, call.scratch
    arguments = {
        "shard": call.tensors.a, "inbox_pointer": scratch.inbox, "returned": returned,
        "epoch_counter": scratch.epoch_counter, "status": call.status, "M": problem.m, "K": problem.k,
        "shard_rows": problem.shard[0],
        "rank": call.rank, "GATHERED": gemm.arguments["GATHERED"], "SLOTS": call.knobs.slots, "BLOCK": BLOCK,
    }  # fmt: skip
    return Launch(return_kernel, problem.m * math.ceil(problem.k / BLOCK), arguments, {"num_warps": 8})


def _hint(problem: AllGatherGemm) -> int:
    """Alignment of every row of a shard in bytes, at most 16: a hint for Iris's translation."""
    return math.gcd(problem.shard[1] * problem.element_size, 16)


def _tiles(call: GatherCall) -> int:
    return call.knobs.tiles(call.problem.m, call.problem.n_local) * call.knobs.split_k


def _ranks(call: GatherCall) -> dict[str, Any]:
    """Arguments of every kernel that communicates."""
    return {
        "rank": call.rank, "heap_bases": call.bases, "epoch_counter": call.scratch.epoch_counter,
        "status": call.status, "spin_limit": call.spin_limit, "WORLD": call.problem.world_size,
    }  # fmt: skip


def _shard(call: GatherCall) -> dict[str, Any]:
    """Arguments of every kernel that moves A."""
    problem, (rows, width) = call.problem, call.problem.shard
    return {
        "shard": call.tensors.a, "M": problem.m, "K": problem.k, "shard_rows": rows, "width": width,
        "ROWS": problem.rows_layout, "HINT": _hint(problem), **_scales(call),
    }  # fmt: skip


def _scales(call: GatherCall) -> dict[str, Any]:
    """Arguments of every kernel that moves A's scales; None where they stay where they are."""
    problem, moving = call.problem, call.problem.gathers_scales
    width = problem.shard[1] if problem.scales == "block" else 1
    return {
        "scale_shard": call.tensors.scale_a if moving else None,
        "scale_columns": (blocks(width) if moving else None),
        "scale_pitch": problem.scale_columns if moving else None,
    }  # fmt: skip


def _step(call: GatherCall) -> dict[str, Any]:
    """A communicating program's steps through a shard: the block that it moves at once, see ``transfer``."""
    problem, knobs = call.problem, call.knobs
    width = problem.shard[1]
    if problem.rows_layout:
        width //= knobs.k_chunks
    elements = knobs.copy_kib * 1024 // problem.element_size
    whole = width & -width  # the largest power of two that divides it
    columns = min(elements, whole if whole >= MOST_SPLIT_ROW else 1 << max(4, (width - 1).bit_length()))
    return {
        "STEP_ROWS": elements // columns, "STEP_COLUMNS": columns, "ROTATE": knobs.peer_order == "rotate",
        "VECTOR": max(1, _hint(problem) // problem.element_size),
    }  # fmt: skip


def _gemm(call: GatherCall) -> dict[str, Any]:
    problem, scratch = call.problem, call.scratch
    return {
        **call.knobs.common(problem, call.tensors, call.machine), **_ranks(call), **_shard(call),
        "EPILOGUE": EPILOGUES.index(problem.epilogue), "HALVES": halves_constant(problem.halves, problem.n_local),
        "c_scales": scales_of_c(call.tensors), "N": problem.n_local, "result": call.tensors.c,
        "ready": scratch.ready, "done": scratch.done,
        "scale_a": None if problem.gathers_scales else call.tensors.scale_a,
    }  # fmt: skip


def _pull(call: GatherCall) -> Launch:
    """The direct pull, one program per tile or persistent."""
    programs, knobs = _tiles(call), call.knobs
    if knobs.schedule != "tile":
        programs = min(programs, call.machine.compute_units)
    segments = {"ALIGNED": call.problem.one_owner(knobs.block_m), "EVEN_K": call.problem.shard[1] % knobs.block_k == 0}
    return Launch(pull_gemm_kernel, programs, _gemm(call) | segments, knobs.options)


def _gather_gemm(call: GatherCall) -> list[Launch]:
    """The GEMM over an inbox, after the push kernel if that is separate."""
    knobs, scratch = call.knobs, call.scratch
    communicating = knobs.comm_programs
    same_launch, beside = knobs.push_site == "same_launch", knobs.push_site == "side_stream"
    if knobs.schedule == "tile":
        programs, head_start = _tiles(call) + communicating * same_launch, 1
    else:
        programs = call.machine.compute_units - (communicating if beside else 0)
        head_start = knobs.head_start if same_launch else 0
    gathered = not call.problem.one_owner(call.knobs.block_m) or knobs.split_k > 1
    transfer = {
        "inbox_pointer": scratch.inbox, "scale_inbox": scratch.scale_inbox, "arrivals": scratch.arrivals,
        "transfer_rows": knobs.transfer_rows,
        "finishing": programs + (0 if same_launch else communicating),
        "SLOTS": knobs.slots, "GATHERED": gathered, "CHUNKS": knobs.k_chunks, "phase": scratch.phase, **_step(call),
    }  # fmt: skip
    in_two_parts = knobs.in_two_parts(call.problem, call.machine) and not knobs.preload_b
    kind = FETCH if knobs.mode == "pull_staged" else PUSH if same_launch else NONE
    gemm = {
        "a": knobs.a_operand(scratch.inbox if gathered else call.tensors.a, in_two_parts=in_two_parts),
        "inbox": knobs.a_operand(scratch.inbox, in_two_parts=in_two_parts),
        "partials": scratch.partials, "tickets": scratch.tickets, "SPLITS": knobs.split_k,
        "PRELOAD": knobs.preload_b, "comm_programs": communicating, "head_start": head_start,
        "TRANSFER": kind.value, "FLATTEN": knobs.schedule == "flattened", "PROXY_FENCE": knobs.tma,
        "BARRIER": knobs.barrier, "trace": knobs.trace_of(programs, call.tensors.c),
    }  # fmt: skip
    # On another stream nothing but room lets the push begin; elsewhere it is the first to.
    resident = programs if beside else None
    launches = [Launch(gather_gemm_kernel, programs, _gemm(call) | transfer | gemm, knobs.options, resident)]
    if not same_launch:
        pushing = transfer | _ranks(call) | _shard(call) | {"ready": scratch.ready, "BARRIER": knobs.split_launch}
        if not knobs.split_launch:  # it waits for nobody
            pushing |= dict.fromkeys(("ready", "status", "spin_limit"))
        resident = communicating if beside else None
        push = Launch(push_kernel, communicating, pushing, {"num_warps": 8}, resident)
        return [push, *empty_launches(knobs.empty_launches), *launches]
    return launches


def _gather(call: GatherCall) -> Launch:
    """The all-gather in front of the library's GEMM."""
    scratch = call.scratch
    boxes = {
        "inbox_pointer": scratch.inbox, "scale_inbox": scratch.scale_inbox, "arrivals": scratch.arrivals,
        "ready": scratch.ready,
    }  # fmt: skip
    arguments = _ranks(call) | _shard(call) | _step(call) | boxes
    return Launch(gather_kernel, call.knobs.comm_programs, arguments, {"num_warps": 8})


def _gather_words(call: GatherCall) -> Launch:
    """The all-gather by sentinel words."""
    step = call.knobs.copy_kib * 1024 // call.problem.element_size
    moved = {name: each for name, each in _shard(call).items() if not name.startswith("scale_")}
    boxes = {"words": call.scratch.words, "inbox_pointer": call.scratch.inbox, "BLOCK": step}
    return Launch(gather_words_kernel, call.knobs.comm_programs, _ranks(call) | moved | boxes, {"num_warps": 8})


def _signals_and_waits(call: GatherCall) -> list[Launch]:
    """Two launches per chunk, in order: the signal to its receiver, and the wait for the chunk of the same turn."""
    problem, knobs, scratch, launches = call.problem, call.knobs, call.scratch, []
    world, units = problem.world_size, scratch.arrivals.shape[-1]
    turns = list(rounds(world, problem.shard[0], knobs.transfer_rows, knobs.chunk_sizes == "shrinking"))
    for turn, (apart, number, _) in enumerate(turns, start=1):
        signal = {
            "arrivals": scratch.arrivals, "counter": call.rank * units + number, "peer": (call.rank + apart) % world,
            "rank": call.rank, "heap_bases": call.bases,
        }  # fmt: skip
        waiting = {
            "arrivals": scratch.arrivals, "counter": (call.rank - apart) % world * units + number,
            "epoch_counter": scratch.epoch_counter, "status": call.status, "spin_limit": call.spin_limit,
            "FINISH": turn == len(turns),
        }  # fmt: skip
        launches += [Launch(signal_chunk_kernel, 1, signal, {"num_warps": 1})]
        launches += [Launch(wait_for_chunk_kernel, 1, waiting, {"num_warps": 1})]
    return launches


def _barrier(call: GatherCall, counters: torch.Tensor, finish: bool) -> Launch:
    """All ranks wait for each other, on the device."""
    return Launch(
        barrier_kernel, 1, _ranks(call) | {"counters": counters, "trace": None, "FINISH": finish}, {"num_warps": 1}
    )


class _SideStream:
    """The push on its own stream, the GEMM on the caller's; both are done before the caller's next work.

    So they are before ``after``, the copy of the gathered A: the epoch that it reads ends with the later of both.
    """

    def __init__(self, push: Launch, gemm: Run, after: Run, side: torch.cuda.Stream) -> None:
        self._push, self._gemm, self._after, self._side = push, gemm, after, side

    def __call__(self) -> None:
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            self._push.run()
        self._gemm()
        main.wait_stream(self._side)
        self._after()
