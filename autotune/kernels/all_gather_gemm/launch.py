"""Launching all-gather + GEMM: from a problem, a config and its tensors to something that can be called repeatedly.

``bsp``, ``own_collective`` and ``copy_engine`` call the library's GEMM; ``pull``, ``pull_staged`` and ``push`` ours.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm import device
from autotune.kernels.all_gather_gemm.copy_engine import CopyEngine
from autotune.kernels.all_gather_gemm.library import bulk_synchronous, gather_and_multiply
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.scratch import Scratch
from autotune.kernels.launching.gemm import GemmKnobs, GemmTensors
from autotune.kernels.launching.graphs import enqueueing, graphed, replayed
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import share
from autotune.kernels.launching.streams import side_stream
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.kernels.primitives.barrier import barrier_kernel
from autotune.machine import Machine

READ_BY_PEERS = ("pull", "pull_staged", "copy_engine")
"""Modes whose peers read our shard where it lies: at the same place on the symmetric heap on every rank."""

MOST_CHUNKS = 16
"""Of all values of ``k_chunks``; units have 16 rows at least."""

MOST_SPLIT_ROW = 64
"""Elements: a row whose largest power of two is at least this is moved in such pieces, another one whole."""


def slots(config: Config) -> int:
    """Inboxes used in turn, a power of two: two where peers push into them, one where only we write."""
    return 2 if config["mode"] == "push" else 1


def allocate_scratch(
    problem: AllGatherGemm, config: Config, machine: Machine, share: Allocate, own: Allocate
) -> Scratch:
    """The scratch of one config: ``share`` allocates on the heap, ``own`` on this rank's device alone."""
    rows, _ = problem.shard
    whole = config["mode"] == "own_collective"
    staged = "transfer_rows" in config or whole
    units = 1 if whole else -(-rows // config.integer("transfer_rows")) if staged else 0
    chunks = config.integer("k_chunks") if "k_chunks" in config else 1
    ints = torch.int32
    partials, tickets = GemmKnobs(config, machine).partials(problem.m, problem.n_local, own)
    return Scratch(
        epoch_counter=share((2,), ints),
        status=share((1,), ints),
        ready=share((problem.world_size,), ints),
        done=share((problem.world_size,), ints),
        arrivals=share((chunks, problem.world_size, units), ints),
        inbox=share((slots(config) * problem.m * staged, problem.k), TORCH_DTYPES[problem.dtype]),
        partials=partials,
        tickets=tickets,
    )


def scratch_bytes(problem: AllGatherGemm) -> int:
    """The most that any config of the problem allocates on the heap as scratch, with room for alignment."""
    rows, _ = problem.shard
    arrivals = MOST_CHUNKS * problem.world_size * rows * 4 // 16 + 1024
    return 2 * problem.m * problem.k * problem.element_size + arrivals + (64 << 10)


def plan(
    problem: AllGatherGemm, config: Config, machine: Machine, tensors: GemmTensors, scratch: Scratch,
    bases: torch.Tensor, rank: int, spin_limit: int,
) -> list[Launch]:  # fmt: skip
    """The kernel launches of one call, in order (``push_site`` separate: the push first, then the GEMM).

    ``copy_engine``: the one before its copies, the one after. ``own_collective``: the one before its GEMM.
    """
    builder = _Builder(problem, config, machine, tensors, scratch, bases, rank, spin_limit)
    mode = config["mode"]
    if mode == "pull":
        return [builder.pull()]
    if mode in ("pull_staged", "push"):
        return builder.gather_gemm()
    if mode == "own_collective":
        return [builder.gather()]
    if mode == "copy_engine":
        return [builder.barrier(scratch.ready, finish=False), builder.barrier(scratch.done, finish=True)]
    return []


@dataclass(frozen=True)
class _Builder:
    """The arguments that the kernels have in common."""

    problem: AllGatherGemm
    config: Config
    machine: Machine
    tensors: GemmTensors
    scratch: Scratch
    bases: torch.Tensor
    rank: int
    spin_limit: int

    @property
    def knobs(self) -> GemmKnobs:
        return GemmKnobs(self.config, self.machine)

    @property
    def tiles(self) -> int:
        return self.knobs.tiles(self.problem.m, self.problem.n_local) * self.knobs.splits

    @property
    def aligned(self) -> bool:
        return self.problem.rows_layout and self.problem.shard[0] % self.knobs.block_m == 0

    @property
    def hint(self) -> int:
        """Bytes by which every row of a shard is aligned, at most 16: what Iris's translation is told."""
        return math.gcd(self.problem.shard[1] * self.problem.element_size, 16)

    def common(self) -> dict[str, Any]:
        """Arguments of both GEMM kernels."""
        problem, tensors, scratch = self.problem, self.tensors, self.scratch
        rows, width = problem.shard
        return {
            **self.knobs.common(tensors.b, tensors.c, problem.b_order == "nk", problem.k),
            "shard": tensors.a,
            "bias": tensors.bias if tensors.bias is not None else tensors.c,
            "M": problem.m, "N": problem.n_local, "K": problem.k, "shard_rows": rows, "width": width,
            "rank": self.rank, "heap_bases": self.bases,
            "epoch_counter": scratch.epoch_counter, "ready": scratch.ready, "done": scratch.done,
            "status": scratch.status, "spin_limit": self.spin_limit,
            "WORLD": problem.world_size, "ROWS": problem.rows_layout,
            "BIAS": tensors.bias is not None, "HINT": self.hint,
        }  # fmt: skip

    def pull(self) -> Launch:
        """The direct pull, one program a tile or persistent."""
        programs = self.tiles
        if self.config["schedule"] != "tile":
            programs = min(programs, self.machine.compute_units)
        segments = {"ALIGNED": self.aligned, "EVEN_K": self.problem.shard[1] % self.knobs.block_k == 0}
        return Launch(device.pull_gemm_kernel, programs, self.common() | segments, self.knobs.options)

    def step(self) -> dict[str, int]:
        """The block that a communicating program moves at once, see ``transfer``."""
        width = self.problem.shard[1]
        if self.problem.rows_layout and "k_chunks" in self.config:
            width //= self.config.integer("k_chunks")
        elements = self.config.integer("copy_kib") * 1024 // self.problem.element_size
        whole = width & -width  # the largest power of two that divides it
        columns = min(elements, whole if whole >= MOST_SPLIT_ROW else 1 << max(4, (width - 1).bit_length()))
        return {"STEP_ROWS": elements // columns, "STEP_COLUMNS": columns}

    def gather_gemm(self) -> list[Launch]:
        """The GEMM over an inbox, and the push kernel before it where that is a kernel of its own."""
        config, problem, scratch, knobs = self.config, self.problem, self.scratch, self.knobs
        communicating = config.integer("comm_programs")
        pushing = config["mode"] == "push"
        site = config["push_site"] if pushing else "same_launch"
        same_launch = site == "same_launch"
        if config["schedule"] == "tile":
            programs, head_start = self.tiles + communicating * same_launch, 1
        else:
            programs = self.machine.compute_units - (communicating if site == "side_stream" else 0)
            head_start = config.integer("head_start") if same_launch else 0
        gathered = not self.aligned or knobs.splits > 1
        transfer = {
            "inbox_pointer": scratch.inbox, "arrivals": scratch.arrivals,
            "transfer_rows": config.integer("transfer_rows"),
            "finishing": programs + (0 if same_launch else communicating),
            "SLOTS": slots(config), "ROTATE": config["peer_order"] == "rotate", **self.step(),
            "GATHERED": gathered, "CHUNKS": config.integer("k_chunks"),
            "VECTOR": max(1, self.hint // problem.element_size),
        }  # fmt: skip
        kind = device.FETCH if not pushing else device.PUSH if same_launch else device.NONE
        gemm = {
            "a": knobs.a_operand(scratch.inbox if gathered else self.tensors.a),
            "inbox": knobs.a_operand(scratch.inbox),
            "partials": scratch.partials, "tickets": scratch.tickets, "SPLITS": knobs.splits,
            "PRELOAD": config["preload_b"] is True,
            "comm_programs": communicating, "head_start": head_start, "TRANSFER": kind.value,
            "FLATTEN": config["schedule"] == "flattened", "PROXY_FENCE": knobs.tma,
        }  # fmt: skip
        common = self.common()
        # On another stream nothing but room lets the push begin; elsewhere it is the first to.
        beside = site == "side_stream"
        resident = programs if beside else None
        launches = [Launch(device.gather_gemm_kernel, programs, common | transfer | gemm, knobs.options, resident)]
        if not same_launch:
            names = (
                "shard", "M", "K", "shard_rows", "width", "rank", "heap_bases", "epoch_counter", "WORLD", "ROWS",
                "HINT",
            )  # fmt: skip
            arguments = transfer | {name: common[name] for name in names}
            resident = communicating if beside else None
            launches.insert(0, Launch(device.push_kernel, communicating, arguments, {"num_warps": 8}, resident))
        return launches

    def gather(self) -> Launch:
        """The all-gather in front of the library's GEMM."""
        problem, scratch = self.problem, self.scratch
        rows, width = problem.shard
        arguments = {
            "shard": self.tensors.a, "inbox_pointer": scratch.inbox, "M": problem.m, "K": problem.k, "shard_rows": rows,
            "width": width, "rank": self.rank, "heap_bases": self.bases, "epoch_counter": scratch.epoch_counter,
            "arrivals": scratch.arrivals, "ready": scratch.ready, "status": scratch.status,
            "spin_limit": self.spin_limit, "WORLD": problem.world_size, "ROWS": problem.rows_layout,
            "ROTATE": self.config["peer_order"] == "rotate", **self.step(),
            "VECTOR": max(1, self.hint // problem.element_size), "HINT": self.hint,
        }  # fmt: skip
        return Launch(device.gather_kernel, self.config.integer("comm_programs"), arguments, {"num_warps": 8})

    def barrier(self, counters: torch.Tensor, finish: bool) -> Launch:
        """All ranks wait for each other, on the device."""
        scratch = self.scratch
        arguments = {
            "counters": counters, "epoch_counter": scratch.epoch_counter, "rank": self.rank, "heap_bases": self.bases,
            "status": scratch.status, "spin_limit": self.spin_limit, "WORLD": self.problem.world_size, "FINISH": finish,
        }  # fmt: skip
        return Launch(barrier_kernel, 1, arguments, {"num_warps": 1})


def share_scratch(
    problem: AllGatherGemm, config: Config, machine: Machine, heap: SymmetricHeap
) -> Scratch | None:  # fmt: skip
    """Allocate the scratch of a config on the heap, all of it zero; None for ``bsp``, which has none. Collective."""
    if config["mode"] == "bsp":
        return None
    return share(heap, functools.partial(allocate_scratch, problem, config, machine))


def bind(
    problem: AllGatherGemm, config: Config, machine: Machine, tensors: GemmTensors, scratch: Scratch | None,
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
        return replayed(functools.partial(gather_and_multiply, launches[0], tensors, scratch.inbox), heap)
    if config.get("push_site") == "side_stream" and heap.device.type == "cuda":
        push, gemm = launches
        return replayed(_SideStream(push, gemm, side_stream(heap, "push")), heap)
    return enqueueing(launches, heap)


class _SideStream:
    """The push on a stream of its own, the GEMM on the caller's; both are done before what the caller enqueues next."""

    def __init__(self, push: Launch, gemm: Launch, side: torch.cuda.Stream) -> None:
        self._push, self._gemm, self._side = push, gemm, side

    def __call__(self) -> None:
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            self._push.run()
        self._gemm.run()
        main.wait_stream(self._side)
