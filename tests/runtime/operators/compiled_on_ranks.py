"""Functions that the tests of compiled operators run on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from calls import HEAP, drawn, error, said

import autotune


def grown(url: str) -> dict[str, Any]:
    """Errors of a compiled function whose sizes and context change; the error of a closed context's graph."""
    function = torch.compile(
        lambda context, a, b: autotune.gemm_reduce_scatter(context, a + 0, b), backend="aot_eager", fullgraph=True
    )
    errors = []
    ranks = dist.get_world_size()
    for _ in range(2):
        with autotune.Context(HEAP, url=url) as context:
            for factor in (1, 2, 4):
                problem = autotune.GemmReduceScatter(m=8 * factor * ranks, n=32, k=32 * ranks, world_size=ranks)
                (a, b, _), reference = drawn(problem, factor, context.heap.device)
                errors.append(error(function(context, a, b), reference))
    operator = torch.ops.iris_autotune.gemm_all_reduce.default
    closed = said(lambda: operator(context.handle, a, b, None, None, None, None, False, "auto", False, "auto", ""))
    return {"errors": errors, "closed": closed}
