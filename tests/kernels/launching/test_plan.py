"""A launch that is made again: bound once, with the values that the kernel's signature puts in order."""

from __future__ import annotations

import inspect
from typing import Any

import torch

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
    """What it makes."""

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
