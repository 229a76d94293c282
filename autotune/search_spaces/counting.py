"""Counting the valid points of a space without walking through them.

A constraint over some dimensions is a table of zeros and ones; the product of all tables, summed over all dimensions,
is the number of points that pass them all. Summing one dimension at a time, as soon as nothing else needs it, keeps
the tables small (variable elimination; NumPy's ``einsum`` finds an order): 150 million configs are counted in some
milliseconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Factor = tuple[tuple[str, ...], NDArray[np.bool_]]
"""The dimensions that a constraint uses, and what it allows: one axis for each of them."""


def by_value(sizes: Mapping[str, int], factors: Sequence[Factor]) -> dict[str, list[int]]:
    """The number of valid points with each value, per dimension, in order."""
    tables = _absorbed(sizes, factors)
    return {name: [int(count) for count in _contracted(sizes, tables, (name,))] for name in sizes}


def _absorbed(sizes: Mapping[str, int], factors: Sequence[Factor]) -> list[Factor]:
    """Fewer tables with the same product, in which every dimension occurs: each table is multiplied into one that has
    all its dimensions, if there is one. NumPy searches for its order far longer than it then multiplies.
    """
    tables: list[Factor] = []
    for uses, allowed in sorted(factors, key=lambda factor: -len(factor[0])):
        for number, (wider, table) in enumerate(tables):
            if set(uses) <= set(wider):
                axes = sorted(range(len(uses)), key=lambda axis: wider.index(uses[axis]))
                shape = [sizes[name] if name in uses else 1 for name in wider]
                tables[number] = (wider, table & allowed.transpose(axes).reshape(shape))
                break
        else:
            tables.append((uses, allowed))
    free = set(sizes).difference(*(uses for uses, _ in tables))
    return tables + [((name,), np.ones(sizes[name], dtype=bool)) for name in sizes if name in free]


def _contracted(sizes: Mapping[str, int], tables: Sequence[Factor], kept: tuple[str, ...]) -> NDArray[np.object_]:
    # Python's integers where 64 bits might not hold the count.
    dtype: type = np.int64 if math.prod(sizes.values()) < 2**62 else object
    axis = {name: number for number, name in enumerate(sizes)}
    axes = tuple(tuple(axis[name] for name in uses) for uses, _ in tables)
    result = tuple(axis[name] for name in kept)
    path = _path(axes, tuple(allowed.shape for _, allowed in tables), result)
    operands: list[Any] = []
    for (_, allowed), uses in zip(tables, axes, strict=True):
        operands += [allowed.astype(dtype), uses]
    found: NDArray[np.object_] = np.einsum(*operands, result, optimize=path)
    return found


@functools.lru_cache(1 << 10)  # the same for all problems of a space
def _path(axes: tuple[tuple[int, ...], ...], shapes: tuple[tuple[int, ...], ...], result: tuple[int, ...]) -> list[Any]:
    """The order in which NumPy multiplies tables of these axes and shapes: it takes longer to find than to go."""
    tables: list[Any] = []
    for uses, shape in zip(axes, shapes, strict=True):
        tables += [np.empty(shape, dtype=bool), uses]
    found: list[Any] = np.einsum_path(*tables, result, optimize="greedy")[0]
    return found
