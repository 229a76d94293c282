"""All-gather + GEMM at run time: C = all_gather(A) @ B (+ bias)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.all_gather_gemm import launch
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.runtime.context import Context
from autotune.runtime.operators.gemm import GemmOperator
from autotune.runtime.operators.operator import Operands


def all_gather_gemm(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    *, layout: str = "rows", in_place: bool = False, out: torch.Tensor | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """C = all_gather(A) @ B (+ bias) with the tuned config for this problem, on the current stream. Collective.

    ``a`` is this rank's shard: [m / world_size, k] for layout ``rows``, [m, k / world_size] for ``k``; contiguous,
    bf16, fp16 or fp32. ``b`` is [k, n_local], contiguous or the transpose of a contiguous [n_local, k]; ``bias``
    [n_local].
    Returns C [m, n_local], ``out`` where one is given. In the modes in which peers read the shard it is copied first.
    With ``in_place`` it never is: ``a`` is the tensor of ``all_gather_shard``. That is another problem, with a tuned
    config of its own.

    Raises InvalidProblem where shapes, strides or types do not fit or ``a`` is not that tensor, HeapExhausted where the
    context's heap is too small, and on the first call of a problem what ``lookup`` raises.
    """
    return _OPERATOR(context, (a, b, bias), (layout, in_place), out, config)


def all_gather_shard(context: Context, problem: AllGatherGemm, *, config: Config | None = None) -> torch.Tensor:
    """The tensor for this rank's shard of A that ``all_gather_gemm`` with ``in_place`` takes. Collective.

    The problem has ``in_place``, too. It is the same memory every time; what comes after a call of the operator on its
    stream may write it anew. Its contents are undefined. Raises what the operator's first call raises.
    """
    if problem.world_size != context.heap.world_size:
        raise InvalidProblem(f"the problem has {problem.world_size} ranks, the context {context.heap.world_size}")
    if not problem.in_place:
        raise InvalidProblem(f"{problem}: say in_place=True here and in all_gather_gemm, which copies A otherwise")
    shard = context.workspace(_OPERATOR, problem, config, lambda workspace: None).shard
    assert shard is not None
    return shard


class AllGatherGemmOperator(GemmOperator):
    """Peers may read the shard."""

    name = "all_gather_gemm"
    options = "str layout, bool in_place"
    launcher: ClassVar = launch
    problem_type = AllGatherGemm

    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Sequence[Any]) -> dict[str, Any]:
        """The shard's sizes make A's by the layout."""
        (layout, in_place), (m, k) = options, a.shape
        m, k = (m * world_size, k) if layout == "rows" else (m, k * world_size)
        return {"m": m, "n": b.shape[1] * world_size, "k": k, "layout": layout, "in_place": in_place}

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, int]:
        """[m, n_local]"""
        a, b, _ = operands
        assert a is not None and b is not None
        return a.shape[0] * world_size if options[0] == "rows" else a.shape[0], b.shape[1]

    def read_by_peers(self, problem: AllGatherGemm, config: Config) -> tuple[int, int] | None:
        """The shard, where peers pull or copy it; and wherever the caller writes it in place."""
        return problem.shard if problem.in_place or config["mode"] in launch.READ_BY_PEERS else None


_OPERATOR = AllGatherGemmOperator()
