"""Activations that a graph quantises to fp8, by rows or blocks of 128, behind a gather or a norm and before GEMMs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from autotune.compiled.gates import POINTWISE
from autotune.compiled.gemms import FP8_GEMMS, gemm_of
from autotune.compiled.graphs import ATEN, CASTS, RESHAPES, TURNS, NoMatch, named, same, shape_of, value_of
from autotune.dtypes import SCALE_BLOCK
from autotune.kernels.launching.tensors import OPERAND_DTYPES

LARGEST = (ATEN.amax.default, ATEN.max.dim)
SIZED = {ATEN.view.default, ATEN.reshape.default, ATEN._unsafe_view.default, ATEN.expand.default}
"""Operations with sizes among their arguments."""
EXACT = {ATEN.abs.default, *LARGEST, operator.getitem, ATEN.expand.default, *RESHAPES}
"""Operations that round nothing."""

ROWWISE: Mapping[Any, Callable[..., Any]] = {
    **POINTWISE, **dict.fromkeys((ATEN.expand.default, *RESHAPES, *LARGEST), lambda x, *_, **__: x),
    operator.getitem: operator.getitem, ATEN.abs.default: abs, ATEN.clamp_min.default: max, ATEN.clamp_max.default: min,
}  # fmt: skip
"""Operations of which a quantisation may be made, of numbers; the largest is given."""

LEAST = 1 / 512
"""The epsilon of a largest element up to which a quantisation is taken for a norm's: vLLM's. For a smaller row the
graph's scale is coarser than ours then, and both round the norm to fp8 by no more than the graph's does.
"""

POINTS = [(part * most, most) for most in (LEAST * 8.0**step for step in range(45)) for part in (1, -1, 0.37, -0.004)]
"""Elements, and the largest beside them."""

CLOSE = 1e-6
"""Largest difference of two ways to write a quantisation, relative."""


@dataclass(frozen=True)
class Quantised:
    """A tensor's rows in fp8 and their scales: the A of a GEMM."""

    source: Node
    nodes: tuple[Node, ...]
    """In their order, from the source to A and its scales."""
    gemm: Node
    a: Node
    scale: Node
    """Scales of A, row by row."""


def quantised_behind(source: Node) -> list[Quantised]:
    """A tensor's quantisations, GEMM by GEMM; none where nothing becomes fp8. Raises NoMatch for other users, too."""
    inside = [source]
    for node in inside:  # it grows meanwhile
        inside += [user for user in node.users if user.target in {*ROWWISE, *TURNS} and user not in inside]
    if not any(_bytes(node) == 1 for node in inside):
        return []
    users = sorted({user for node in inside for user in node.users} - {*inside})
    others = {named(user) for user in users if user.target not in FP8_GEMMS}
    if others:
        raise NoMatch(f"what is quantised is also used by {', '.join(sorted(others))}")
    found = []
    for user in users:
        gemm = gemm_of(user)
        if gemm.scale_a is None or gemm.b in inside or not {gemm.a, gemm.scale_a} <= {*inside}:
            raise NoMatch("what is quantised and its scales are not together the A of the GEMMs behind it")
        found.append(Quantised(source, _between(source, gemm.a, gemm.scale_a), user, gemm.a, gemm.scale_a))
    return found


def _bytes(node: Node) -> int:
    """Bytes of an element; 0 of what is no tensor."""
    value = node.meta.get("val")
    return value.element_size() if isinstance(value, torch.Tensor) else 0


def _between(source: Node, *ends: Node) -> tuple[Node, ...]:
    """All that the ends are computed by. Raises NoMatch if that is not each row by itself."""
    found, waiting = set[Node](), list(ends)
    while waiting:
        node = waiting.pop()
        if node is source or node in found:
            continue
        if node.target not in ROWWISE:
            raise NoMatch(f"what is quantised, or its scale, comes from {named(node)}")
        found.add(node)
        inputs = [each for each in node.all_input_nodes if not isinstance(each.meta.get("val"), torch.SymInt)]
        waiting += inputs
        if node.target in LARGEST:
            dims: Any = (*node.args, [])[1]
            last = len(shape_of(inputs[0])) - 1
            if not last or [each % (last + 1) for each in (dims if isinstance(dims, list) else [dims])] != [last]:
                raise NoMatch("the largest element is not that of a row or a part of it")
        elif node.target not in {*RESHAPES, operator.getitem}:
            rows = list(map(str, shape_of(node)[:-1]))
            if any(list(map(str, shape_of(each)[:-1])) != rows for each in inputs):
                raise NoMatch(f"{named(node)} spreads scales over rows or blocks")
    return tuple(sorted(found))


@dataclass(frozen=True)
class Moved:
    """Quantisations of a rank's rows, in a graph of their own until an operator takes them."""

    graph: Graph
    made: Mapping[Node, Node]
    """Their nodes by those of all ranks' rows."""
    placed: dict[Node, Node]
    """Nodes of another graph that stand for these; the shard's from the start."""

    def into(self, graph: Graph, operands: Mapping[str, Node]) -> dict[str, Node]:
        """An operator's operands, put where a graph inserts; behind a gather for several GEMMs before the first."""
        for node in self.graph.nodes:
            if node not in self.placed:
                self.placed[node] = graph.node_copy(node, self.placed.__getitem__)
        return {name: self.placed.get(node, node) for name, node in operands.items()}


def before_gather(quantised: Sequence[Quantised], source: Node, shard: Node) -> Moved:
    """The quantisations of a rank's rows alone. Raises NoMatch where a row or block has parts of several ranks."""
    graph = Graph()
    ours = graph.placeholder("shard")
    ours.meta["val"] = value_of(shard)
    _check_share(source, ours)
    made = {source: ours}
    for node in sorted({node for each in quantised for node in each.nodes}):
        made[node] = copy = graph.node_copy(node, lambda each: made.get(each, ours))
        if node.target in SIZED:
            sizes = list(shape_of(node))
            sizes[_place_of_rows(sizes)] = -1
            if not all(isinstance(size, int) for size in sizes):
                raise NoMatch(f"several sizes of {node.name} are symbols: {list(shape_of(node))}")
            copy.args = (copy.args[0], sizes)
        arguments = torch.fx.node.map_arg(copy.args, lambda each: each.meta["val"])
        try:
            copy.meta["val"] = node.target(*arguments, **node.kwargs)  # type: ignore[operator]
        except RuntimeError as error:
            raise NoMatch(f"{named(node)} takes no share of the gathered rows") from error
        if isinstance(copy.meta["val"], torch.Tensor):
            _check_share(node, copy)
    return Moved(graph, made, {ours: shard})


def _place_of_rows(sizes: Sequence[Any]) -> int:
    """The dimension of all ranks' rows: the first that is longer than 1."""
    return next((place for place, size in enumerate(sizes) if not isinstance(size, int) or size != 1), 0)


def _check_share(whole: Node, share: Node) -> None:
    """Raise NoMatch unless a tensor of a rank's rows has the shape of that of all rows, but for their number."""
    sizes, ours = shape_of(whole), shape_of(share)
    rows = _place_of_rows(sizes)
    others = [place for place in range(len(sizes)) if place != rows]
    if len(ours) != len(sizes) or rows == len(sizes) - 1 > 0 or not all(same(sizes[at], ours[at]) for at in others):
        raise NoMatch(f"{named(whole)} has rows or blocks of several ranks")


def scales_of(quantised: Quantised) -> str:
    """``row`` or ``block``. Raises NoMatch unless scales and fp8 are as a norm's operator makes them."""
    dtype = value_of(quantised.a).dtype
    if dtype != OPERAND_DTYPES["fp8"]:
        raise NoMatch(f"the norm becomes {dtype}, the operator's {OPERAND_DTYPES['fp8']}")
    largest = [node for node in quantised.nodes if node.target in LARGEST]
    parts = [shape_of(node.all_input_nodes[0])[-1] for node in largest]
    width = shape_of(quantised.source)[-1]
    if len(parts) != 1 or parts[0] not in (width, SCALE_BLOCK):
        raise NoMatch(f"the norm is quantised by parts of {parts} columns, by the operator of {width} or {SCALE_BLOCK}")
    for node in quantised.nodes:
        rounded = node.target in CASTS and node.args[0] is quantised.source
        narrow = _bytes(node) == 2 and node.target not in EXACT and not rounded
        if narrow or (_bytes(node) == 1 and any(_bytes(user) > 1 for user in node.users if user in quantised.nodes)):
            raise NoMatch(f"the norm is quantised in {value_of(node).dtype}, by the operator in fp32")
    most = torch.finfo(dtype).max
    for x, peak in POINTS:
        found, wanted = _computed(quantised, x, peak), (x / peak * most, peak / most)
        if not all(math.isclose(one, other, rel_tol=CLOSE) for one, other in zip(found, wanted, strict=True)):
            raise NoMatch(f"the norm is quantised by another formula than x / scale, scale = max |x| / {most}")
    return "row" if parts[0] == width else "block"


def _computed(quantised: Quantised, x: float, peak: float) -> tuple[float, float]:
    """The number that becomes fp8, and its scale, of an element and the largest beside it."""
    values: dict[Node, Any] = {quantised.source: x}
    try:
        for node in quantised.nodes:
            arguments: Any = torch.fx.node.map_arg(node.args, lambda each: values.get(each, 0))
            values[node] = ROWWISE[node.target](*arguments, **node.kwargs)
            if node.target in LARGEST:
                if values[node] != abs(x):
                    return math.nan, math.nan
                values[node] = (peak, 0) if node.target is ATEN.max.dim else peak
    except (ArithmeticError, TypeError, ValueError):  # another function, which is not defined for these numbers
        return math.nan, math.nan
    return values[quantised.a], values[quantised.scale]
