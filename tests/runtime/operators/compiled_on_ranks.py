"""Functions that the tests of compiled operators run on every rank."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from calls import HEAP, call, configs, drawn, error, problems, said, schema_arguments

import autotune


def compiled_and_grown(url: str) -> dict[str, Any]:
    """Both, on the same ranks."""
    return {"compiled": compiled(url), "grown": grown(url)}


def compiled(url: str) -> dict[str, Any]:
    """Errors of compiled functions that call every operator, with and without outputs given; and after a close."""
    backend = "inductor" if torch.cuda.is_available() else "aot_eager"
    found: dict[str, Any] = {}
    with autotune.Context(HEAP, url=url) as context:
        device = context.heap.device
        here = problems(device)[:4]
        given = configs(here[0], context.machine)[0]

        def everything(inputs: Any, outs: Any) -> Any:
            results = []
            for problem, operands, out in zip(here, inputs, outs, strict=True):
                results.append(call(context, problem, operands) * 2)
                call(context, problem, operands, out=out)
            halved = (inputs[0][0] / 2, *inputs[0][1:2], None)
            return [*results, call(context, problem_without_bias, halved, config=given) * 2]

        problem_without_bias = dataclasses.replace(here[0], bias=False)
        function = torch.compile(everything, backend=backend, fullgraph=True)
        for seed in (1, 2):
            pairs = [drawn(problem, seed, device) for problem in here]
            outs = [torch.empty_like(reference, dtype=torch.bfloat16) for _, reference in pairs]
            *results, last = function([operands for operands, _ in pairs], outs)
            for problem, result, out, (_, reference) in zip(here, results, outs, pairs, strict=True):
                worst = max(error(result / 2, reference), error(out, reference))
                found[problem.workload] = max(found.get(problem.workload, 0.0), worst)
            (a, b, bias), reference = pairs[0][0], pairs[0][1]
            found["config"] = error(last, reference - bias.float())
    closed = schema_arguments(context, here[3], (a, b, None))
    found["closed"] = said(lambda: torch.ops.iris_autotune.gemm_all_reduce(*closed))
    return found


def grown(url: str) -> list[float]:
    """Errors of a compiled function whose sizes change, after which they are symbols in its graph; and its context."""
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
    return errors
