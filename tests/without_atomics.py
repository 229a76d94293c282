"""Ranks between whose GPUs atomics do not go, as over PCIe: a kernel that adds to a peer's memory ends in an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import rank_imports  # noqa: F401  what all ranks of tests import

from autotune.heap.loading import import_iris

iris = import_iris()
added = iris.atomic_add


def _values(of: Any) -> Any:
    return of.handle.data if hasattr(of, "handle") else np.asarray(of)


def refuse(pointer: Any, value: Any, from_rank: Any, to_rank: Any, bases: Any, mask: Any = None, **how: Any) -> Any:
    """Iris' atomic add, on our own memory alone."""
    meant = True if mask is None else _values(mask)
    if np.any((_values(from_rank) != _values(to_rank)) & meant):
        raise RuntimeError("an atomic on a peer's memory")
    return added(pointer, value, from_rank, to_rank, bases, mask=mask, **how)


iris.atomic_add = refuse
