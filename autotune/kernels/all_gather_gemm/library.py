"""The library's GEMM after an all-gather: the library's (the bulk-synchronous baseline), or our own kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm.activation import multiply_and_activate
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.scratch import Scratch
from autotune.kernels.all_gather_gemm.tensors import scales_of_c
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.kept import kept
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Run


def bulk_synchronous(
    problem: AllGatherGemm, tensors: GemmTensors, heap: SymmetricHeap, between: Sequence[Launch] = (),
    returned: torch.Tensor | None = None,
) -> Run:  # fmt: skip
    """The baseline, the hard way: one ``all_gather_single``, one library GEMM, no concatenation, no host wait.

    In K layout the shard is gathered transposed: the result is A transposed, which the library's GEMM takes as it is.
    ``between`` are launches between the two. The gathered A is left in ``returned`` if there is one: it is gathered
    there by rows, and copied along K. An eager call costs the host no more than plain torch's: what depends on
    addresses alone is made here, once, and what is gathered goes where it went before.
    """
    if problem.scaled:
        return _scaled(problem, tensors, heap, between, returned)
    a, by_rows, group = tensors.a, problem.rows_layout, heap.library_group
    gathered = returned
    if gathered is None or not by_rows:
        gathered = kept(heap, "gathered", (problem.m, problem.k) if by_rows else (problem.k, problem.m), a.dtype)
    whole, out_scales = gathered if by_rows else gathered.t(), scales_of_c(tensors)

    def run() -> None:
        all_gather_single(gathered, a if by_rows else a.t().contiguous(), group)
        for launch in between:
            launch.run()
        multiply_and_activate(problem, whole, None, tensors, tensors.c, out_scales)
        if returned is not None and not by_rows:
            returned.copy_(whole)

    return run


def _scaled(
    problem: AllGatherGemm, tensors: GemmTensors, heap: SymmetricHeap, between: Sequence[Launch],
    returned: torch.Tensor | None,
) -> Run:  # fmt: skip
    """fp8 operands: bytes and travelling scales are gathered by one launch of the library.

    In K layout one copy puts what was gathered in order: the library's scaled GEMM takes no transposed A.
    """
    a, scale_a, out_scales, group = tensors.a, tensors.scale_a, scales_of_c(tensors), heap.library_group
    assert scale_a is not None
    by_rows, ranks = problem.rows_layout, problem.world_size
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


def gather_and_multiply(
    gather: Launch, problem: AllGatherGemm, tensors: GemmTensors, scratch: Scratch, returned: torch.Tensor | None
) -> None:  # fmt: skip
    """Gather with our own kernel, multiply with the library's GEMM; A arrives untransposed in either layout."""
    gather.run()
    scales = tensors.scale_a if scratch.scale_inbox is None else scratch.scale_inbox
    multiply_and_activate(problem, scratch.inbox, scales, tensors, tensors.c, scales_of_c(tensors))
    if returned is not None:
        returned.copy_(scratch.inbox)
