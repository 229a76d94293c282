"""The library's GEMM after an all-gather: the library's (the bulk-synchronous baseline), or our own kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.kernels.all_gather_gemm.activation import multiply_and_activate
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.scratch import Scratch
from autotune.kernels.all_gather_gemm.tensors import scales_of_c
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Run


def bulk_synchronous(
    problem: AllGatherGemm, tensors: GemmTensors, group: Any, between: Sequence[Launch] = (),
    returned: torch.Tensor | None = None,
) -> Run:  # fmt: skip
    """The baseline, the hard way: one ``all_gather_into_tensor``, one library GEMM, no concatenation, no host wait.

    In K layout the shard is gathered transposed: the result is A transposed, which the library's GEMM takes as it is.
    ``between`` are launches between the two. The gathered A is left in ``returned`` if there is one: it is gathered
    there by rows, and copied along K.
    """
    if problem.scaled:
        return _scaled(problem, tensors, group, between, returned)
    a, by_rows = tensors.a, problem.rows_layout
    shape = (problem.m, problem.k) if by_rows else (problem.k, problem.m)
    out_scales = scales_of_c(tensors)

    def run() -> None:
        gathered = returned if by_rows and returned is not None else a.new_empty(shape)
        torch.distributed.all_gather_into_tensor(gathered, a if by_rows else a.t().contiguous(), group)
        for launch in between:
            launch.run()
        multiply_and_activate(problem, gathered if by_rows else gathered.t(), None, tensors, tensors.c, out_scales)
        if returned is not None and not by_rows:
            returned.copy_(gathered.t())

    return run


def _scaled(
    problem: AllGatherGemm, tensors: GemmTensors, group: Any, between: Sequence[Launch], returned: torch.Tensor | None
) -> Run:
    """The same with fp8: bytes are gathered, and scales that travel, both by one launch of the library.

    In K layout one copy puts what was gathered in order: the library's scaled GEMM takes no transposed A. What depends
    on addresses alone is made here, once: an eager call is to cost the host no more than plain torch's.
    """
    a, scale_a, out_scales = tensors.a, tensors.scale_a, scales_of_c(tensors)
    assert scale_a is not None
    shards = [as_bytes(each) for each in ([a, scale_a] if problem.gathers_scales else [a])]
    shapes, by_rows = [(problem.world_size * len(each), each.shape[1]) for each in shards], problem.rows_layout
    kept = [as_bytes(returned)] if returned is not None and by_rows else []

    def run() -> None:
        made = [each.new_empty(shape) for each, shape in zip(shards[len(kept) :], shapes[len(kept) :], strict=True)]
        gathered = kept + made
        gather(gathered, shards, group)
        for launch in between:
            launch.run()
        whole, its_scales = gathered[0].view(a.dtype), scale_a
        if problem.gathers_scales:
            its_scales = gathered[1].view(torch.float32)
        if not by_rows:
            whole = _side_by_side(whole, problem.world_size)
            its_scales = _side_by_side(its_scales, problem.world_size) if problem.gathers_scales else its_scales
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
        torch.distributed.all_gather_into_tensor(whole, shard, group)


def as_bytes(matrix: torch.Tensor) -> torch.Tensor:
    """The same memory [rows, bytes of a row], uint8: the library's collectives do not know every element type."""
    return matrix.view(torch.uint8)


def _side_by_side(stacked: torch.Tensor, ranks: int) -> torch.Tensor:
    """Shards on top of each other as one matrix in which they lie side by side."""
    return stacked.view(ranks, -1, stacked.shape[1]).transpose(0, 1).flatten(1)


def gather_and_multiply(
    gather: Launch, problem: AllGatherGemm, tensors: GemmTensors, scratch: Scratch, returned: torch.Tensor | None
) -> None:  # fmt: skip
    """The same with our own kernel instead of the library's collective; in either layout A arrives untransposed."""
    gather.run()
    scales = tensors.scale_a if scratch.scale_inbox is None else scratch.scale_inbox
    multiply_and_activate(problem, scratch.inbox, scales, tensors, tensors.c, scales_of_c(tensors))
    if returned is not None:
        returned.copy_(scratch.inbox)
