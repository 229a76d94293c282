"""The library's GEMM after an all-gather: the library's (the bulk-synchronous baseline), or our own kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm.activation import multiply_and_activate
from autotune.kernels.all_gather_gemm.library_modes import CustomCollective, Library
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.push import gather_kernel, gather_words_kernel
from autotune.kernels.all_gather_gemm.scratch import Inbox
from autotune.kernels.all_gather_gemm.space import GatherTask
from autotune.kernels.all_gather_gemm.way import GatherCall, GatherWay, of_shard, of_step, returned_of, scales_of_c
from autotune.kernels.gemm.library import OF_A_LIBRARY
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import MaybeS
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.one_program import empty_launches
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import wire_type
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate, Run
from autotune.kernels.launching.way import LibraryWay, M


class MultiplyingWay(GatherWay[M, MaybeS]):
    """The library's GEMM."""

    def roundings(self, problem: AllGatherGemm) -> float:
        """The product, also where an activation follows."""
        return 1.0 + OF_A_LIBRARY


class BulkSynchronous(LibraryWay[AllGatherGemm, Library, GemmTensors], MultiplyingWay[Library, None]):
    def eager(self, call: GatherCall[Library, None]) -> Run:
        """The baseline, the hard way: one ``all_gather_single``, one library GEMM, no concatenation, no host wait.

        In K layout the shard is gathered transposed: the result is A transposed, which the library's GEMM takes as it
        is; where its rows would not begin at multiples of 16 bytes, that took up to 3.2 times as long (H100, m=129),
        and A is put in order by a copy. The gathered A is left in its result, if it is one: it is gathered there by
        rows, and copied along K. An eager call costs the host no more than plain torch's: what depends on addresses
        alone is made here, once, and what is gathered goes where it went before.
        """
        problem, tensors, heap, returned = call.problem, call.tensors, call.heap, returned_of(call.tensors)
        assert heap is not None, "a call that is only compiled is not run"
        if problem.scaled:
            return _scaled(call)
        a, by_rows, group, ranks = tensors.a, problem.rows_layout, call.group, problem.world_size
        between = empty_launches(call.knobs.empty_launches)
        transposed = not by_rows and problem.m * problem.element_size % 16 == 0
        gathered = returned
        if gathered is None or not by_rows:
            rows, columns = reversed(problem.shard) if transposed else problem.shard
            gathered = kept(heap, "gathered", (ranks * rows, columns), a.dtype)
        out_scales = scales_of_c(tensors)

        def run() -> None:
            all_gather_single(gathered, a.t().contiguous() if transposed else a, group)
            for launch in between:
                launch.run()
            whole = gathered.t() if transposed else gathered if by_rows else _side_by_side(gathered, ranks)
            multiply_and_activate(problem, whole, None, tensors, tensors.c, out_scales)
            if returned is not None and not by_rows:
                returned.copy_(whole)

        return run


def _scaled(call: GatherCall[Library, None]) -> Run:
    """fp8 operands: bytes and travelling scales are gathered by one launch of the library.

    In K layout one copy puts what was gathered in order: the library's scaled GEMM takes no transposed A.
    """
    problem, tensors, heap, returned = call.problem, call.tensors, call.heap, returned_of(call.tensors)
    a, scale_a, out_scales = tensors.a, tensors.scale_a, scales_of_c(tensors)
    assert scale_a is not None and heap is not None
    by_rows, ranks, group = problem.rows_layout, problem.world_size, call.group
    between = empty_launches(call.knobs.empty_launches)
    named = {"gathered": a, **({"gathered scales": scale_a} if problem.gathers_scales else {})}
    stacked = [
        returned
        if returned is not None and by_rows and each is a
        else kept(heap, name, (ranks * len(each), each.shape[1]), each.dtype)
        for name, each in named.items()
    ]
    shards, gathered = [as_bytes(each) for each in named.values()], [as_bytes(each) for each in stacked]

    def run() -> None:
        gather(gathered, shards, group)
        for launch in between:
            launch.run()
        whole, *scales = stacked if by_rows else [_side_by_side(each, ranks) for each in stacked]
        its_scales = scales[0] if scales else scale_a
        multiply_and_activate(problem, whole, its_scales, tensors, tensors.c, out_scales)
        if returned is not None and not by_rows:
            returned.copy_(whole)

    return run


def gather(gathered: Sequence[torch.Tensor], shards: Sequence[torch.Tensor], group: Any = None) -> None:
    """The library's all-gather of several tensors ``as_bytes`` gives them: one launch, where the library can."""
    if len(shards) > 1 and shards[0].is_cuda:  # gloo mixes them up
        with torch.distributed._coalescing_manager(group):  # type: ignore[attr-defined]
            _gather(gathered, shards, group)
    else:
        _gather(gathered, shards, group)


def _gather(gathered: Sequence[torch.Tensor], shards: Sequence[torch.Tensor], group: Any) -> None:
    for whole, shard in zip(gathered, shards, strict=True):
        all_gather_single(whole, shard, group)


def as_bytes(matrix: torch.Tensor) -> torch.Tensor:
    """A view [rows, bytes of a row], uint8: the library's collectives do not know every element type."""
    return matrix.view(torch.uint8)


def _side_by_side(stacked: torch.Tensor, ranks: int) -> torch.Tensor:
    """Shards on top of each other as one matrix in which they lie side by side."""
    return stacked.view(ranks, -1, stacked.shape[1]).transpose(0, 1).flatten(1)


@dataclass(frozen=True, kw_only=True)
class Words(Inbox):
    words: torch.Tensor | None
    """Sentinel words [2 slots, world_size, elements of a shard], where A travels as such; empty between launches."""


class CustomCollectiveWay(MultiplyingWay[CustomCollective, Words]):
    """Gather with our own kernel, multiply with the library's GEMM; A arrives untransposed in either layout."""

    def scratch(self, task: GatherTask, mode: CustomCollective, shared: Allocate, own: Allocate) -> Words:
        problem, words = task.problem, None
        if mode.protocol == "sentinel":
            shape = (2, problem.world_size, math.prod(problem.shard))
            words = shared(shape, wire_type("sentinel", OPERAND_DTYPES[problem.dtype]))
        return Words.of_units(problem, shared, 1, words=words)

    def launches(self, call: GatherCall[CustomCollective, Words]) -> list[Launch]:
        problem, mode, scratch, arguments = call.problem, call.knobs, call.scratch, call.common() | of_shard(call)
        arguments["inbox_pointer"] = scratch.inbox
        if scratch.words is None:
            kernel, boxes = gather_kernel, {
                "scale_inbox": scratch.scale_inbox, "arrivals": scratch.arrivals, "ready": scratch.ready,
                **of_step(problem, mode),
            }  # fmt: skip
        else:
            kernel, boxes = gather_words_kernel, {
                "words": scratch.words, "BLOCK": mode.copy_kib * 1024 // problem.element_size,
            }  # fmt: skip
            arguments = {name: each for name, each in arguments.items() if not name.startswith("scale_")}
        return [Launch(kernel, mode.comm_programs, arguments | boxes, {"num_warps": 8})]

    def run(self, call: GatherCall[CustomCollective, Words], launches: list[Launch]) -> Run:
        problem, tensors, scratch, returned = call.problem, call.tensors, call.scratch, returned_of(call.tensors)
        scales = tensors.scale_a if scratch.scale_inbox is None else scratch.scale_inbox

        def run() -> None:
            launches[0].run()
            multiply_and_activate(problem, scratch.inbox, scales, tensors, tensors.c, scales_of_c(tensors))
            if returned is not None:
                returned.copy_(scratch.inbox)

        return run


def kept(heap: SymmetricHeap, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of undefined contents. All calls on a heap, which never overlap, share the memory of a name.

    It grows with what is asked for. What it was before stays alive with the heap, for captured graphs have its address;
    all of it together is less than three times the largest.
    """
    size = math.prod(shape) * dtype.itemsize
    buffers = heap.kept.setdefault(name, [])
    if not buffers or buffers[-1].numel() < size:
        least = 2 * buffers[-1].numel() if buffers else 0
        buffers.append(torch.empty(max(size, least), dtype=torch.uint8, device=heap.device))
    return buffers[-1][:size].view(dtype).view(shape)
