"""Nodes of a graph after autograd: their shapes, names, reshapes and casts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from autotune.kernels.launching.tensors import TORCH_DTYPES

ATEN, C10D, PRIMS = torch.ops.aten, torch.ops._c10d_functional, torch.ops.prims

GATHER = C10D.all_gather_into_tensor.default
SCATTER = C10D.reduce_scatter_tensor.default
REDUCE = C10D.all_reduce.default
WAIT = C10D.wait_tensor.default

RESHAPES = {
    ATEN.view.default, ATEN.reshape.default, ATEN._unsafe_view.default, ATEN.unsqueeze.default, ATEN.squeeze.dim,
    ATEN.squeeze.dims, ATEN.flatten.using_ints, ATEN.alias.default, ATEN.detach.default, ATEN.clone.default,
}  # fmt: skip
"""Operations that keep the order of a tensor's elements, whatever its strides."""

TURNS = {ATEN.t.default, ATEN.transpose.int, ATEN.permute.default}
"""Operations that transpose a matrix."""

SPLITS = {ATEN.split.Tensor, ATEN.split_with_sizes.default}

CAST = PRIMS.convert_element_type.default
CASTS = {CAST, ATEN._to_copy.default}

DTYPES = frozenset(TORCH_DTYPES.values())
"""The types in which a model computes; a cast to another one, such as fp8, does more than round."""


class NoMatch(Exception):
    """No operator computes this; the message says why."""


def value_of(node: Node) -> torch.Tensor:
    """The stand-in for a node's tensor. Raises NoMatch where it is none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NoMatch(f"{node.name} has no known shape")
    return value


def shape_of(node: Node) -> Sequence[Any]:
    """Shape of a node's value, with symbols for unknown sizes."""
    return value_of(node).shape


def same(one: Any, other: Any) -> bool:
    """Equal sizes; of symbols those that are written alike."""
    return str(one) == str(other)


def alike(one: Node, other: Node) -> bool:
    """True if both are of one shape and element type."""
    mine, others = value_of(one), value_of(other)
    return list(map(str, mine.shape)) == list(map(str, others.shape)) and mine.dtype == others.dtype


def keeps_columns(node: Node, source: Node) -> bool:
    """True if a node is a reshape that leaves the last dimension of its source as it is."""
    if node.target not in RESHAPES or not shape_of(node) or not shape_of(source):
        return False
    return same(shape_of(node)[-1], shape_of(source)[-1])


def behind_reshapes(node: Node) -> Node:
    """A tensor behind reshapes that leave its last dimension as it is, as long as each has one user."""
    while len(node.users) == 1 and keeps_columns(next(iter(node.users)), node):
        node = next(iter(node.users))
    return node


def computed_from(node: Node, source: Node) -> bool:
    """True if a node uses a source, directly or not, or that of which the source is a reshape, a cast or a part. Not
    through a gather or a scatter, which bring what other ranks computed from theirs.
    """
    while source.target in {*RESHAPES, *CASTS, operator.getitem}:
        (source,) = source.all_input_nodes
    waiting, seen = [node], set[Node]()
    while waiting:
        here = waiting.pop()
        if here is source:
            return True
        # What stands before the source does not use it.
        if here not in seen and source < here and here.target not in (GATHER, SCATTER):
            seen.add(here)
            waiting += here.all_input_nodes
    return False


def rounds(node: Node) -> bool:
    """True if a node is a cast that changes nothing but the last bits."""
    return node.target in CASTS and value_of(node).dtype in DTYPES


def named(node: Node) -> str:
    """Readable name. Inputs and outputs of a graph may be whole graphs elsewhere: a graph break lies between."""
    ends = {"output": "the graph's result", "placeholder": "outside the graph"}
    return ends.get(node.op) or str(getattr(node.target, "__name__", node.target))
