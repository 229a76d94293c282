"""Launching GEMM + all-reduce: from a problem, a config and its tensors to something that can be called repeatedly.

Modes: ``bsp`` calls the library, ``one_shot`` and ``two_shot`` our kernel, once.
"""

from __future__ import annotations

import functools
import math

import torch
import triton.language as tl

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm_all_reduce import device
from autotune.kernels.gemm_all_reduce.library import bulk_synchronous
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES, SLOTS, GemmAllReduce
from autotune.kernels.gemm_all_reduce.scratch import Scratch
from autotune.kernels.launching.gemm import GemmKnobs, GemmTensors
from autotune.kernels.launching.graphs import enqueueing, graphed
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import share
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.machine import Machine

MODES = {"one_shot": device.ONE_SHOT, "two_shot": device.TWO_SHOT}
TYPES = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
LARGEST_TILE = 256
SMALLEST_TILE = (16, 32)


def uses_ll(config: Config) -> bool:
    """Whether parts travel by the LL protocol."""
    return config.get("protocol") == "ll"


def allocate_scratch(
    problem: GemmAllReduce, config: Config, machine: Machine, share: Allocate, own: Allocate
) -> Scratch:
    """The scratch of one config: ``share`` allocates on the heap, ``own`` on this rank's device alone."""
    knobs, mode, ints = GemmKnobs(config, machine), str(config["mode"]), torch.int32
    tiles, tile = knobs.tiles(problem.m, problem.n), (knobs.block_m, knobs.block_n)
    wire = torch.int64 if uses_ll(config) else TORCH_DTYPES[problem.dtype]
    in_all = problem.inbox_bytes(mode, *tile, ll=uses_ll(config)) // wire.itemsize
    results = SLOTS * tiles if mode == "two_shot" else 0
    in_results = results * math.prod(tile) * problem.element_size * (2 if uses_ll(config) else 1) // wire.itemsize
    partials, tickets = knobs.partials(problem.m, problem.n, own)
    return Scratch(
        epoch_counter=share((1,), torch.int64),
        status=share((1,), ints),
        arrivals=share((SLOTS, tiles), ints),
        returns=share((results,), ints),
        inbox=share((in_all - in_results,), wire),
        results=share((in_results,), wire),
        partials=partials,
        tickets=tickets,
    )


def scratch_bytes(problem: GemmAllReduce) -> int:
    """The most that any config of the problem allocates on the heap as scratch, with room for alignment."""
    # Tiles are powers of two, so the largest leaves the most beyond the matrix's edge, and the smallest are the most.
    block_m, block_n = (
        min(LARGEST_TILE, max(smallest, 1 << (size - 1).bit_length()))
        for size, smallest in zip((problem.m, problem.n), SMALLEST_TILE, strict=True)
    )
    inboxes = (problem.inbox_bytes(mode, block_m, block_n, ll=True) for mode in MODES)
    tiles = math.ceil(problem.m / SMALLEST_TILE[0]) * math.ceil(problem.n / SMALLEST_TILE[1])
    return min(max(inboxes), MOST_INBOX_BYTES) + 2 * SLOTS * tiles * torch.int32.itemsize + (64 << 10)


def plan(
    problem: GemmAllReduce, config: Config, machine: Machine, tensors: GemmTensors, scratch: Scratch,
    bases: torch.Tensor, rank: int, spin_limit: int,
) -> list[Launch]:  # fmt: skip
    """The kernel launches of one call: a single one; none for ``bsp``."""
    if config["mode"] == "bsp":
        return []
    knobs = GemmKnobs(config, machine)
    tiles = knobs.tiles(problem.m, problem.n)
    programs = tiles * knobs.splits
    if config["schedule"] == "persistent":
        programs = min(programs, machine.compute_units * config.integer("programs_per_unit"))
    separate = config["combine"] == "separate"
    blocking = config["schedule"] == "persistent" and knobs.splits > 1 and not separate
    arguments = {
        **knobs.common(tensors.b, tensors.c, problem.b_order == "nk", problem.k_local),
        "a": knobs.a_operand(tensors.a), "c": tensors.c,
        "bias": tensors.bias if tensors.bias is not None else tensors.c,
        "inbox": scratch.inbox, "results": scratch.results,
        "partials": scratch.partials, "tickets": scratch.tickets,
        "M": problem.m, "N": problem.n, "K": problem.k_local, "gemm_programs": programs, "rank": rank,
        "heap_bases": bases, "epoch_counter": scratch.epoch_counter, "arrivals": scratch.arrivals,
        "returns": scratch.returns, "status": scratch.status, "spin_limit": spin_limit,
        "TYPE": TYPES[problem.dtype], "WORLD": problem.world_size, "MODE": MODES[str(config["mode"])].value,
        "LL": uses_ll(config), "SEPARATE": separate, "SPLITS": knobs.splits, "BIAS": tensors.bias is not None,
    }  # fmt: skip
    resident = programs if blocking else None
    return [Launch(device.gemm_all_reduce_kernel, programs + tiles * separate, arguments, knobs.options, resident)]


def share_scratch(
    problem: GemmAllReduce, config: Config, machine: Machine, heap: SymmetricHeap
) -> Scratch | None:  # fmt: skip
    """Allocate the scratch of a config on the heap, all of it zero; None for ``bsp``, which has none. Collective."""
    if config["mode"] == "bsp":
        return None
    return share(heap, functools.partial(allocate_scratch, problem, config, machine))


def bind(
    problem: GemmAllReduce, config: Config, machine: Machine, tensors: GemmTensors, scratch: Scratch | None,
    heap: SymmetricHeap, spin_limit: int,
) -> Run:  # fmt: skip
    """What enqueues one call of a config on these tensors. Several bindings may take turns on one scratch.

    Collective for ``bsp`` as a CUDA graph, which is captured here.
    """
    if scratch is None:
        run = bulk_synchronous(problem, tensors, heap.rank)
        return graphed(run) if config["launch"] == "graph" else run
    launches = plan(problem, config, machine, tensors, scratch, heap.bases, heap.rank, spin_limit)
    return enqueueing(launches, heap)
