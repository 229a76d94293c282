"""A launch that is made again: bound once, with the values that the kernel's signature puts in order; kernels' keys."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from scripts import run_script

from autotune.kernels.launching.plan import Launch


class Kernel:
    """A JITFunction as far as a launch knows it; keeps what was launched, and how."""

    def __init__(self) -> None:
        self.launched: list[Any] = []
        self.signature = inspect.signature(lambda x, n, BLOCK=64: None)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(**arguments: Any) -> Compiled:
            self.launched.append(("bound", grid, arguments))
            return Compiled(self.launched)

        return launch


class Compiled:
    def __init__(self, launched: list[Any]) -> None:
        self._launched = launched

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *values: self._launched.append(("again", grid, values))


def test_arguments_are_bound_once_and_tensors_are_addresses_from_then_on() -> None:
    kernel, x = Kernel(), torch.ones(4)
    launch = Launch(kernel, 3, {"n": 1000, "x": x}, {"num_warps": 8})
    for _ in range(3):
        launch.run()
    again = ("again", (3, 1, 1), (x.data_ptr(), 1000, 64))
    assert kernel.launched == [("bound", (3,), {"n": 1000, "x": x, "num_warps": 8}), again, again]


KEYS = """
import sys
from autotune.kernels.all_gather_gemm.device import gather_gemm_kernel
from autotune.kernels.all_gather_gemm.push import push_kernel
from autotune.kernels.gemm_reduce_scatter.device import gemm_scatter_kernel
from autotune.kernels.launching.plan import settle_key
kernels = [gather_gemm_kernel, push_kernel, gemm_scatter_kernel]
for kernel in kernels if sys.argv[1] == "forwards" else reversed(kernels):
    settle_key(kernel)
print(*(kernel.cache_key for kernel in kernels))
"""


def test_a_kernels_key_is_the_same_whatever_was_compiled_before() -> None:
    keys = [run_script("-c", KEYS, order, interpreted=False) for order in ("forwards", "backwards")]
    assert [each.returncode for each in keys] == [0, 0], keys
    assert keys[0].stdout == keys[1].stdout != ""
