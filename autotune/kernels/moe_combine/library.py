"""The library's ways to combine: rows are summed by token where they are, and a collective does the rest."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from autotune.kernels.gemm.library import ring
from autotune.kernels.launching.collectives import reduce_scatter_single
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import settle_key
from autotune.kernels.launching.tensors import Run
from autotune.kernels.launching.way import LibraryWay
from autotune.kernels.moe.routing import reached_ranks
from autotune.kernels.moe_combine.device import list_rows_kernel, sum_rows_kernel
from autotune.kernels.moe_combine.modes import Library
from autotune.kernels.moe_combine.problem import CombinedProblem, MoeCombine
from autotune.kernels.moe_combine.tensors import Tensors

LISTED = 1024
"""Rows that a program lists."""
SUMMED = 1024
"""Columns that a program sums."""


class BulkSynchronous(LibraryWay[MoeCombine, Library[MoeCombine], Tensors]):
    def eager(self, call: Call[MoeCombine, Library[MoeCombine], Tensors, None]) -> Run:
        return lambda: combine(call, call.tensors.rows)

    def roundings(self, problem: MoeCombine) -> float:
        """What travels, and the sums of the collective."""
        return ring(problem.world_size)


def combine(call: Call[Any, Any, Any, None], rows: torch.Tensor) -> None:
    """A call's result = the sums of all ranks' rows by token. By a collective of fixed shapes, or by an ``all_to_all``
    for which the host reads counts. Where the problem demands determinism, parts are exchanged, and added in the order
    of ranks.
    """
    if call.knobs.exchange == "all_to_all":
        _counted(call, rows)
        return
    problem, out = call.problem, call.tensors.out
    summed = _by_token(problem, rows, call.tensors)
    if problem.deterministic:
        parts = torch.empty_like(summed)
        dist.all_to_all_single(parts, summed, group=call.group)
        torch.sum(parts.view(problem.world_size, *out.shape), dim=0, out=out)
    else:
        reduce_scatter_single(out, summed, group=call.group)


def _by_token(problem: CombinedProblem, rows: torch.Tensor, tensors: Any) -> torch.Tensor:
    """[world_size * tokens, hidden]: the sum of each token's rows times their gates, in the order of its ids.

    The host reads nothing, and no call of torch does it in one pass: of 8192 tokens with 4 rows each of 7168 columns
    ``embedding_bag`` makes sums in 1.40 ms, gather and ``bmm`` in 1.27, a sum that torch.compile unrolls in 0.16, where
    the bytes alone take 0.14 (one H200, bf16). So these are the kernels that torch.compile would write.
    """
    places = torch.full((problem.all_pairs,), -1, dtype=torch.int32, device=rows.device)
    sums = rows.new_empty((problem.all_pairs // problem.top_k, problem.hidden))
    block = min(SUMMED, 1 << (problem.hidden - 1).bit_length())
    blocks = math.ceil(problem.hidden / block)
    for kernel in (list_rows_kernel, sum_rows_kernel):
        settle_key(kernel)
    list_rows_kernel[(math.ceil(len(tensors.pairs) / LISTED),)](tensors.pairs, tensors.offsets[-1:], places, LISTED)
    sum_rows_kernel[(len(sums) * blocks,)](
        rows, places, tensors.row_gates, sums, problem.hidden, blocks, problem.top_k, block
    )  # fmt: skip
    return sums


def _counted(call: Call[Any, Any, Any, None], rows: torch.Tensor) -> None:
    """The host waits for counts, and each token's sum travels where there is one."""
    problem, tensors = call.problem, call.tensors
    world, tokens = problem.world_size, problem.tokens
    count = int(tensors.offsets[-1])
    summed = _by_token(problem, rows, tensors)
    leaving = torch.zeros(world * tokens, dtype=torch.bool, device=rows.device)
    leaving[tensors.pairs[:count].long() // problem.top_k] = True
    reached = reached_ranks(problem, tensors.ids)
    if problem.top_k > problem.local_experts:
        # A plan may lack rows, and then tokens: who waits for a sum gets one, or the all-to-all would not end.
        wanted = torch.empty_like(leaving)
        dist.all_to_all_single(
            wanted.view(torch.uint8), reached.T.contiguous().view(torch.uint8).flatten(), group=call.group
        )
        summed.masked_fill_((wanted & ~leaving)[:, None], math.nan)
        leaving = wanted
    sent, received = leaving.view(world, tokens).sum(1).tolist(), reached.sum(0).tolist()
    arrived = rows.new_empty((sum(received), problem.hidden))
    dist.all_to_all_single(arrived, summed[leaving], received, sent, call.group)
    total = torch.zeros(tensors.out.shape, dtype=torch.float32, device=rows.device)
    for source, part in enumerate(arrived.split(received)):
        total[reached[:, source]] += part
    tensors.out.copy_(total)
