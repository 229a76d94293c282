"""Launching all-gather + GEMM: from a problem, a config and its tensors to something that can be called repeatedly.

Modes: ``bsp`` and ``copy_engine`` call the library's GEMM, ``pull``, ``pull_staged`` and ``push`` our kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autotune.config import Config
from autotune.environment import Machine
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm import device
from autotune.kernels.all_gather_gemm.copy_engine import CopyEngine
from autotune.kernels.all_gather_gemm.library import bulk_synchronous
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.tensors import Scratch, Tensors
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.plan import Launch, run_all
from autotune.kernels.launching.tensors import TORCH_DTYPES, Run
from autotune.kernels.primitives.meeting import meet_kernel


def slots(config: Config) -> int:
    """Inboxes used in turn, a power of two: two where peers push into them, one where only we write."""
    return 2 if config["mode"] == "push" else 1


def allocate_scratch(
    problem: AllGatherGemm, config: Config, allocate: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
) -> Scratch:
    """The scratch of one config, from a heap's ``allocate`` (or one that makes meta tensors)."""
    rows, width = problem.shard
    units = -(-rows // config.integer("unit_rows")) if "unit_rows" in config else 0
    inbox_rows = slots(config) * problem.world_size * rows if config["mode"] not in ("bsp", "pull") else 0
    ints = torch.int32
    return Scratch(
        state=allocate((2,), ints),
        status=allocate((1,), ints),
        ready=allocate((problem.world_size,), ints),
        done=allocate((problem.world_size,), ints),
        arrivals=allocate((problem.world_size, units), ints),
        inbox=allocate((inbox_rows, width), TORCH_DTYPES[problem.dtype]),
    )


def scratch_bytes(problem: AllGatherGemm) -> int:
    """The most that any config of the problem allocates as scratch, with room for alignment."""
    rows, width = problem.shard
    return 2 * problem.world_size * rows * width * problem.element_size + problem.world_size * rows * 4 + (64 << 10)


def plan(
    problem: AllGatherGemm, config: Config, machine: Machine, tensors: Tensors, scratch: Scratch,
    bases: torch.Tensor, rank: int, spin_limit: int,
) -> list[Launch]:  # fmt: skip
    """The kernel launches of one call, in order (``push_site`` separate: the push first, then the GEMM)."""
    builder = _Builder(problem, config, machine, tensors, scratch, bases, rank, spin_limit)
    mode = config["mode"]
    if mode == "pull":
        return [builder.pull()]
    if mode in ("pull_staged", "push"):
        return builder.gather_gemm()
    if mode == "copy_engine":
        return [builder.meet(scratch.ready, last=False), builder.meet(scratch.done, last=True)]
    return []


@dataclass(frozen=True)
class _Builder:
    """The arguments that the kernels have in common."""

    problem: AllGatherGemm
    config: Config
    machine: Machine
    tensors: Tensors
    scratch: Scratch
    bases: torch.Tensor
    rank: int
    spin_limit: int

    @property
    def blocks(self) -> tuple[int, int, int]:
        return tuple(self.config.integer(name) for name in ("block_m", "block_n", "block_k"))  # type: ignore[return-value]

    @property
    def tiles(self) -> int:
        block_m, block_n, _ = self.blocks
        return -(-self.problem.m // block_m) * -(-self.problem.n_local // block_n)

    @property
    def tma(self) -> bool:
        return self.config["loads"] == "tma"

    @property
    def aligned(self) -> bool:
        return self.problem.shard[0] % self.blocks[0] == 0

    @property
    def hint(self) -> int:
        """Bytes by which every row of a shard is aligned, at most 16: what Iris's translation is told."""
        return math.gcd(self.problem.shard[1] * self.problem.element_size, 16)

    def operand(self, tensor: torch.Tensor, block: tuple[int, int]) -> Any:
        """A descriptor where the config loads by TMA, else the tensor."""
        if not self.tma:
            return tensor
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))

    def common(self) -> dict[str, Any]:
        """Arguments of both GEMM kernels."""
        problem, tensors, scratch = self.problem, self.tensors, self.scratch
        rows, width = problem.shard
        block_m, block_n, block_k = self.blocks
        transposed = problem.b_order == "nk"
        b = tensors.b.t() if transposed else tensors.b
        c_columns = block_n // 2 if block_n >= 64 else block_n
        return {
            "b": self.operand(b, (block_n, block_k) if transposed else (block_k, block_n)),
            "c": self.operand(tensors.c, (block_m, c_columns)),
            "shard": tensors.a,
            "bias": tensors.bias if tensors.bias is not None else tensors.c,
            "M": problem.m, "N": problem.n_local, "K": problem.k, "shard_rows": rows, "width": width,
            "stride_bk": tensors.b.stride(0), "stride_bn": tensors.b.stride(1),
            "group_m": self.config.integer("group_m"), "rank": self.rank, "heap_bases": self.bases,
            "state": scratch.state, "ready": scratch.ready, "done": scratch.done, "status": scratch.status,
            "spin_limit": self.spin_limit,
            "WORLD": problem.world_size, "ROWS": problem.rows_layout, "ALIGNED": self.aligned,
            "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
            "TMA": self.tma, "B_TRANSPOSED": transposed, "EVEN_K": width % block_k == 0,
            "BIAS": tensors.bias is not None, "HINT": self.hint,
        }  # fmt: skip

    @property
    def options(self) -> dict[str, int]:
        return {name: self.config.integer(name) for name in ("num_warps", "num_stages")}

    def pull(self) -> Launch:
        """The direct pull, one program a tile or persistent."""
        programs = self.tiles
        if self.config["schedule"] != "tile":
            programs = min(programs, self.machine.compute_units)
        return Launch(device.pull_gemm_kernel, programs, self.common(), self.options)

    def gather_gemm(self) -> list[Launch]:
        """The GEMM over an inbox, and the push kernel before it where that is a kernel of its own."""
        config, problem, scratch = self.config, self.problem, self.scratch
        rows, width = problem.shard
        communicating = config.integer("comm_programs")
        pushing = config["mode"] == "push"
        site = config["push_site"] if pushing else "same_launch"
        same_launch = site == "same_launch"
        step = config.integer("copy_kib") * 1024 // problem.element_size
        if config["schedule"] == "tile":
            programs, head_start = self.tiles + communicating * same_launch, 1
        else:
            programs = self.machine.compute_units - (communicating if site == "side_stream" else 0)
            head_start = config.integer("head_start") if same_launch else 0
        leaving = programs + (0 if same_launch else communicating)
        transfer = {
            "mail": scratch.inbox, "arrivals": scratch.arrivals, "unit_rows": config.integer("unit_rows"),
            "leaving": leaving, "SLOTS": slots(config), "ROTATE": config["peer_order"] == "rotate", "STEP": step,
            "VECTOR": max(1, self.hint // problem.element_size),
        }  # fmt: skip
        block_m, _, block_k = self.blocks
        kind = device.FETCH if not pushing else device.PUSH if same_launch else device.NONE
        gemm = {
            "a": self.operand(self.tensors.a, (block_m, block_k)),
            "inbox": self.operand(scratch.inbox, (block_m, block_k)),
            "comm_programs": communicating, "head_start": head_start, "TRANSFER": kind.value,
            "FLATTEN": config["schedule"] == "flattened", "PROXY_FENCE": self.tma and self.machine.kind == "cuda",
        }  # fmt: skip
        launches = [
            Launch(device.gather_gemm_kernel, programs, self.common() | transfer | gemm, self.options),
        ]
        if not same_launch:
            arguments = transfer | {
                "shard": self.tensors.a, "shard_rows": rows, "width": width, "rank": self.rank,
                "heap_bases": self.bases, "state": scratch.state, "WORLD": problem.world_size, "HINT": self.hint,
                "FIRST": 0 if problem.rows_layout and not self.aligned else 1,
            }  # fmt: skip
            launches.insert(0, Launch(device.push_kernel, communicating, arguments, {"num_warps": 8}))
        return launches

    def meet(self, counters: torch.Tensor, last: bool) -> Launch:
        """All ranks wait for each other, on the device."""
        scratch = self.scratch
        arguments = {
            "counters": counters, "state": scratch.state, "rank": self.rank, "heap_bases": self.bases,
            "status": scratch.status, "spin_limit": self.spin_limit, "WORLD": self.problem.world_size, "LAST": last,
        }  # fmt: skip
        return Launch(meet_kernel, 1, arguments, {"num_warps": 1})


def share_scratch(problem: AllGatherGemm, config: Config, heap: SymmetricHeap) -> Scratch | None:
    """Allocate the scratch of a config on the heap, counters cleared; None for ``bsp``, which has none. Collective."""
    if config["mode"] == "bsp":
        return None
    scratch = allocate_scratch(problem, config, heap.allocate)
    for counters in (scratch.state, scratch.status, scratch.ready, scratch.done, scratch.arrivals):
        counters.zero_()
    heap.barrier()
    return scratch


def bind(
    problem: AllGatherGemm, config: Config, machine: Machine, tensors: Tensors, scratch: Scratch | None,
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
        return CopyEngine(problem, config, tensors, scratch, heap, launches)
    if config.get("push_site") == "side_stream" and heap.device.type == "cuda":
        return _SideStream(*launches)
    return functools.partial(run_all, launches)


class _SideStream:
    """The push on a stream of its own, the GEMM on the caller's; both are done before what the caller enqueues next."""

    def __init__(self, push: Launch, gemm: Launch) -> None:
        self._push, self._gemm = push, gemm
        self._side = torch.cuda.Stream()

    def __call__(self) -> None:
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            self._push.run()
        self._gemm.run()
        main.wait_stream(self._side)
