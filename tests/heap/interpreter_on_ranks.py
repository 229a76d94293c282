"""What a rank finds of Triton's interpreter as the heap on CPUs mends it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.runtime import interpreter

from autotune.heap import open_heap


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _six_times(x):
    return _twice(x) + _twice(_twice(x))


@triton.jit
def sum_kernel(values, out, times, BLOCK: tl.constexpr):
    """Six times the values, that many times; and what wraps around in 32 bits."""
    total = tl.zeros((BLOCK,), tl.int32)
    for _ in range(times):
        total += _six_times(tl.load(values + tl.arange(0, BLOCK)))
    tl.store(out + tl.arange(0, BLOCK), total)


def device_functions(argument: Any) -> dict[str, Any]:
    """Launches with few and many calls of device functions: results, looks through the language, what is left."""
    heap = open_heap(1 << 16, dist.new_group(backend="gloo"))
    looks, look = [], interpreter._patch_builtin
    interpreter._patch_builtin = lambda *words: looks.append(words[0]) or look(*words)
    values = torch.tensor([1, -2, 3, 1 << 30], dtype=torch.int32)
    out = torch.zeros(4, dtype=torch.int32)
    found: dict[str, Any] = {"untouched": [tl.core.is_builtin(tl.load)], "looks": [], "results": []}
    for times in (1, 50, 1):
        looks.clear()
        sum_kernel[(2,)](values, out, times, BLOCK=4)
        found["untouched"].append(tl.core.is_builtin(tl.load) and tl.core.is_builtin(tl.tensor.to))
        found["looks"].append(len(looks))
        found["results"].append(torch.equal(out, values * 6 * times))
    heap.close()
    return found
