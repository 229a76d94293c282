"""Ranks between whose GPUs only stores go, as over PCIe: a kernel that adds to a peer's memory, or reads it, ends in an
error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import rank_imports  # noqa: F401  what all ranks of tests import

from autotune.heap import device
from autotune.heap.loading import import_iris

iris = import_iris()


def _values(of: Any) -> Any:
    return of.handle.data if hasattr(of, "handle") else np.asarray(of)


def at_home(function: Any, first_rank: int) -> Callable[..., Any]:
    """One of Iris' functions where the two ranks among its arguments are the same."""

    def called(*arguments: Any, mask: Any = None, **how: Any) -> Any:
        one, other = map(_values, arguments[first_rank : first_rank + 2])
        if np.any((one != other) & (True if mask is None else _values(mask))):
            raise RuntimeError(f"{function.fn.__name__} on a peer's memory")
        return function(*arguments, mask=mask, **how)

    return called


iris.atomic_add = at_home(iris.atomic_add, 2)
iris.load = device.load = at_home(iris.load, 1)
