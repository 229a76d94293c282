"""A workload for ranks between whose GPUs only stores go, as over PCIe: where they begin with it, a kernel that adds to
a peer's memory, or reads it, ends in an error, whatever workload comes next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.heap import device
from autotune.heap.loading import import_iris
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.workloads.built_in.all_reduce_norm import AllReduceNormWorkload

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


@dataclass(frozen=True, kw_only=True)
class Problem(AllReduceNorm):
    workload = "over_pcie"


class OverPcie(AllReduceNormWorkload):
    name, problem_type = "over_pcie", Problem


if sys.argv[0].endswith("rank.py"):
    iris.atomic_add = at_home(iris.atomic_add, 2)
    iris.load = device.load = at_home(iris.load, 1)
