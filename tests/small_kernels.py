"""Small kernels to decorate, interpreted where TRITON_INTERPRET says so when they are made, and a bench to inject."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.jit import KernelInterface

SIZES = [triton.Config({"BLOCK": block}) for block in (32, 64, 128)]


class Clock:
    """A ``do_bench`` that runs the kernel once and gives the next of these milliseconds."""

    def __init__(self, *milliseconds: float) -> None:
        self.left = list(milliseconds)

    def __call__(self, kernel_call: Callable[[], object], quantiles: Any) -> list[float]:
        assert tuple(quantiles) == (0.5, 0.2, 0.8)
        kernel_call()
        return [self.left.pop(0)] * 3


class Recorder(KernelInterface[Any]):
    """Stands for a kernel and keeps how it was launched."""

    def __init__(self, parameters: str) -> None:
        names: dict[str, Any] = {}
        exec(f"def recorded({parameters}): pass", names)
        self.fn = names["recorded"]
        self.arg_names = list(inspect.signature(self.fn).parameters)
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def run(self, *args: Any, **kwargs: Any) -> str:
        self.launches.append((args, kwargs))
        return "the compiled kernel"


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def increment() -> Any:
    @triton.jit
    def increment(x, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    return increment


def copy() -> Any:
    @triton.jit
    def copy(out, x, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

    return copy


def tensors(count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(count), torch.randn(count)


def add_some() -> Any:
    @triton.jit
    def add_some(x, bias, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < n
        tl.store(x + at, tl.load(x + at, mask=mask) + 1.0, mask=mask)
        if bias is not None:
            tl.store(bias + at, tl.load(bias + at, mask=mask) + 1.0, mask=mask)

    return add_some


def add_double() -> Any:
    @triton.jit
    def add_double(x, n, DOUBLE: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at, mask=at < n) + DOUBLE, mask=at < n)

    return add_double
