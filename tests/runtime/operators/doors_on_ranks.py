"""Functions that the tests of operators' doors run on a rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.distributed as dist
from python_calls import python_calls

from autotune.heap import open_heap
from autotune.kernels.launching.plan import Launch
from autotune.machine import machine
from autotune.problem import Problem
from autotune.runtime.host_overhead import warm_call
from autotune.workloads import workload

HEAP = 8 << 20

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "all_gather_gemm": [
        {"in_place": True}, {"gathered": True}, {"layout": "k"}, {"epilogue": "swiglu"},
        {"dtype": "fp8", "scales": "row", "b_order": "nk", "out_dtype": "fp16"},
        {"dtype": "fp8", "scales": "block", "b_order": "nk", "epilogue": "swiglu"},
        {"n": 256, "epilogue": "swiglu", "quantised": True},
    ],
    "gemm_reduce_scatter": [{"wire": "fp8"}, {"dtype": "fp8", "scales": "tensor", "b_order": "nk", "k": 128}],
    "gemm_all_reduce": [{"deterministic": True, "bias": True, "residual": True}],
    "all_reduce_norm": [{"in_place": True}],
    "gemm_all_reduce_norm": [{"eps": 1e-5, "bias": True}],
    "flash_decode": [{"result": "heads", "soft_cap": 30, "ragged": True}, {"kv_dtype": "fp8", "kv_scales": "head"}],
    "moe_dispatch": [{"routing": "zipf", "exponent": 1.0}, {"dtype": "fp8", "scales": "row"}],
    "moe_dispatch_gemm": [{"epilogue": "none"}],
}  # fmt: skip
"""Beside the default problem of every workload."""


def doors(names: list[str]) -> dict[str, Any]:
    """Of each problem: shapes of what its door returns, Python functions of a warm call, bytes taken of the heap."""
    here, found = machine(), {}

    def launched(launch: Launch) -> None:
        raise AssertionError(f"{launch.kernel} was launched")

    Launch.run = launched  # type: ignore[method-assign]
    heap = open_heap(HEAP, dist.new_group(backend="gloo"))
    for name in names:
        plugin = workload(name)
        first = plugin.default_problem(here, dist.get_world_size())
        for fields in ({}, *VARIANTS.get(name, [])):
            problem: Problem = replace(first, **fields)
            mark = heap.mark()
            operation = plugin.operation(problem, heap, here, 1 << 10)
            left = heap.left
            call = warm_call(plugin, problem, operation, heap, here)
            assert call is not None
            result = call()
            made = result if isinstance(result, tuple | list) else (result,)
            # A result at an address that none had before is bound, which is one function more.
            calls = min(python_calls(call) for _ in range(30))
            found[f"{name} {fields}"] = {
                "made": [[*each.shape, str(each.dtype)] for each in made], "calls": calls, "taken": left - heap.left,
                "called": str(next(iter(call.args[0].calls.values())).workspace.problem), "problem": str(problem),
                "wanted": [[*each.shape, str(each.dtype)] for each in operation.outputs()],
            }  # fmt: skip
            heap.release(mark)
    return found
