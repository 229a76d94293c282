"""The library's GEMM after an all-gather: the library's (the bulk-synchronous baseline), or our own kernel."""

from __future__ import annotations

import contextlib
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

    In K layout one copy puts what was gathered in order: the library's scaled GEMM takes no transposed A.
    """
    a, scale_a = tensors.a, tensors.scale_a
    assert scale_a is not None
    travelling = [a, scale_a] if problem.gathers_scales else [a]

    def run() -> None:
        gathered = [each.new_empty((problem.world_size, *each.shape)) for each in travelling]
        if returned is not None and problem.rows_layout:
            gathered[0] = returned.view(problem.world_size, *a.shape)
        gather(gathered, travelling, group)
        for launch in between:
            launch.run()
        whole, *scales = [_joined(each, problem.rows_layout) for each in gathered]
        its_scales = scales[0] if scales else scale_a
        multiply_and_activate(problem, whole, its_scales, tensors, tensors.c, scales_of_c(tensors))
        if returned is not None and not problem.rows_layout:
            returned.copy_(whole)

    return run


def gather(gathered: list[torch.Tensor], shards: list[torch.Tensor], group: Any = None) -> None:
    """The library's all-gather of bytes, of several tensors at once; ``gathered``: [world_size, *shard]."""
    with _at_once(shards[0].device, group) if len(shards) > 1 else contextlib.nullcontext():
        for whole, shard in zip(gathered, shards, strict=True):
            torch.distributed.all_gather_into_tensor(_bytes(whole), _bytes(shard), group)


def _at_once(device: torch.device, group: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes one launch of the collectives within, where the library can: gloo cannot."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    manager: contextlib.AbstractContextManager[Any] = torch.distributed._coalescing_manager(group, device)  # type: ignore[attr-defined]
    return manager


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _joined(gathered: torch.Tensor, by_rows: bool) -> torch.Tensor:
    """Shards [world_size, rows, columns] as one matrix, on top of each other or side by side."""
    return gathered.flatten(0, 1) if by_rows else gathered.transpose(0, 1).flatten(1)


def gather_and_multiply(
    gather: Launch, problem: AllGatherGemm, tensors: GemmTensors, scratch: Scratch, returned: torch.Tensor | None
) -> None:  # fmt: skip
    """The same with our own kernel instead of the library's collective; in either layout A arrives untransposed."""
    gather.run()
    scales = tensors.scale_a if scratch.scale_inbox is None else scratch.scale_inbox
    multiply_and_activate(problem, scratch.inbox, scales, tensors, tensors.c, scales_of_c(tensors))
    if returned is not None:
        returned.copy_(scratch.inbox)
