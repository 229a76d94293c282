"""Puts an operator into a graph in the place of a collective and its GEMM."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from autotune.compiled.decisions import MATRICES, Verdict, hint
from autotune.compiled.gemms import GEMMS, column_of
from autotune.compiled.graphs import ATEN, RESHAPES, SPLITS, TURNS, WAIT, NoMatch, shape_of, value_of
from autotune.compiled.patterns import WORKLOADS, Candidate
from autotune.compiled.quantising import ROWWISE
from autotune.runtime import operators as operators  # registers what a graph calls
from autotune.runtime.call import OPERATORS
from autotune.runtime.context import Context
from autotune.runtime.operator import ADDING_THE_SAME
from autotune.workloads import workload
from autotune.workloads.launched import LaunchedWorkload

ERASED = {
    ATEN.cat.default, ATEN.copy.default, ATEN.slice.Tensor, ATEN.mean.dim, ATEN.rsqrt.default, ATEN.add_.Scalar,
    ATEN.view.dtype, WAIT, operator.getitem, *GEMMS, *ROWWISE, *WORKLOADS, *SPLITS, *TURNS,
}  # fmt: skip
"""Nodes that may fall away with a collective and its GEMM."""


def check_form(candidate: Candidate) -> None:
    """Raise NoMatch where the operator would copy more than falls away with the collective, or sizes are not known."""
    gemm, dim = candidate.gemm, candidate.dim
    for name in MATRICES:
        value = value_of(candidate.operands[name]) if name in candidate.operands else None
        if value is not None and not value.is_contiguous():
            raise NoMatch(f"{name.upper()} has strides {value.stride()}, so the operator would copy it in each call")
    symbols = _symbols(candidate.whole)
    for node in _reshaped_to(candidate):
        if len(shape_of(node)) > 2 and len(_symbols(node)) > 1:
            raise NoMatch(f"several sizes of {node.name} are symbols: {_symbols(node)}")
    if candidate.norm is not None:
        _check_norm(candidate, len(symbols))
    if not _reordered(candidate):
        return
    scales = candidate.operands.get("scale_a")
    if candidate.returns_a or "residual" in candidate.operands or (scales and column_of(value_of(scales)) != (1,)):
        raise NoMatch(f"the ranks share dimension {dim}, not the first one, so what else there is has another order")
    if symbols:
        raise NoMatch(f"the ranks share dimension {dim}, not the first one, and sizes are symbols: {symbols}")
    depth, columns = (
        int(shape_of(candidate.operands["b"])[0]),
        int(shape_of(candidate.gate.result if candidate.gate else gemm)[-1]),
    )
    added, removed = (columns, depth) if candidate.workload == "all_gather_gemm" else (depth, columns)
    if added > removed:
        raise NoMatch(
            f"the ranks share dimension {dim}, not the first one: the operator would copy {added} columns, the "
            f"collective copies {removed}"
        )


def _symbols(node: Node) -> list[Any]:
    return [size for size in shape_of(node) if not isinstance(size, int)]


def _reshaped_to(candidate: Candidate) -> list[Node]:
    """The nodes in whose dimensions the operator's matrices are put, by reshapes that tell one size by the others."""
    gate, norm = candidate.gate, candidate.norm
    whole = candidate.whole if candidate.returns_a or candidate.workload == "gemm_reduce_scatter" else None
    found = [candidate.added, gate.result if gate is not None else None, norm.total if norm is not None else None]
    return [node for node in (whole, *found) if node is not None]


def _check_norm(candidate: Candidate, symbols: int) -> None:
    """Raise NoMatch where the operator, which stands at the total, has not all of its operands there."""
    norm = candidate.norm
    assert norm is not None
    if not norm.weight < norm.total:
        raise NoMatch("the norm's weight is computed behind the total")
    if symbols and len(shape_of(candidate.gemm)) != 2:
        raise NoMatch("rows of the norm are counted by a symbol, in several dimensions")


def rewrite(graph: Graph, candidate: Candidate, verdict: Verdict, context: Context) -> Node:
    """The operator's node. What nothing needs any more is erased."""
    ways = {"all_gather_gemm": _gather, "gemm_reduce_scatter": _scatter, "gemm_all_reduce": _reduce}
    gate, norm = candidate.gate, candidate.norm
    way = ways.get(candidate.workload, _normalise)
    before = candidate.gemm if way is _gather else candidate.added or candidate.wait
    ends = [candidate.added] if candidate.added else [gate.result] if gate else []
    if norm is not None:
        before, ends = norm.total, [norm.total, *norm.rounded, norm.normed]
        ends += [end for each in norm.quantised for end in (each.scale, each.a)]
    with graph.inserting_before(before):
        if candidate.moved is not None:
            operands = candidate.moved.into(graph, candidate.operands)
            candidate = dataclasses.replace(candidate, operands=operands)
        made = way(_Writer(graph, context, verdict), candidate)
    _erase(graph, [candidate.gemm, candidate.whole, candidate.wait, *ends])
    return made


def _erase(graph: Graph, unused: list[Node]) -> None:
    """These nodes, and what they alone used; never what has an effect of its own."""
    gone: set[Node] = set()
    while unused:
        node = unused.pop()
        if node in gone or node.users or node.target not in ERASED:
            continue
        gone.add(node)
        unused += node.all_input_nodes
        graph.erase_node(node)


class _Writer:
    """Adds nodes that know their shape."""

    def __init__(self, graph: Graph, context: Context, verdict: Verdict) -> None:
        self.graph, self._context, self._verdict = graph, context, verdict
        self.ranks = context.heap.world_size

    def add(self, target: Any, *arguments: Any, **named: Any) -> Node:
        node = self.graph.call_function(target, arguments, named)
        values, options = torch.fx.node.map_arg((arguments, named), lambda each: each.meta["val"])
        node.meta["val"] = target(*values, **options)
        return node

    def reshaped(self, node: Node, shape: Sequence[Any]) -> Node:
        """Row by row; one size may be a symbol."""
        if len(shape) == len(shape_of(node)) == 2:
            return node
        return self.add(ATEN.reshape.default, node, [size if isinstance(size, int) else -1 for size in shape])

    def moved(self, node: Node, source: int, target: int) -> Node:
        """A dimension in another place, and the elements in the new order."""
        order = [each for each in range(len(shape_of(node))) if each != source]
        order.insert(target, source)
        permuted = self.add(ATEN.permute.default, node, order)
        return self.add(ATEN.clone.default, permuted, memory_format=torch.contiguous_format)

    def matrix(self, node: Node) -> Node:
        """All dimensions but the last as one."""
        if len(shape_of(node)) == 2:
            return node
        return self.add(ATEN.reshape.default, node, [-1, shape_of(node)[-1]])

    def operator(self, candidate: Candidate, a: Node) -> Node:
        found = workload(candidate.workload)
        assert isinstance(found, LaunchedWorkload)
        operands = {**candidate.operands, "a": a, "x": a}
        if "residual" in operands:
            operands["residual"] = self.matrix(operands["residual"])
        for name in ("scale_a", "scale_b"):
            scale = operands.get(name)
            if scale is not None and column_of(value_of(scale)) != tuple(shape_of(scale)):
                operands[name] = self.add(ATEN.reshape.default, scale, [1])
        if "scale_b" in operands and not value_of(operands["scale_b"]).t().is_contiguous():  # in rows of 16 bytes
            rows = self.moved(operands["scale_b"], 0, 1)
            operands["scale_b"] = self.add(ATEN.permute.default, rows, [1, 0])
        given = [operands.get(name) for name in found.kernels.operands]
        name = found.name + "_gathered" * candidate.returns_a + "_quantised" * candidate.quantises
        text = ADDING_THE_SAME if self._verdict.compares else ""
        return self.add(OPERATORS[name].in_graphs, self._context.handle, *given, *self._verdict.options, text)


def _reordered(candidate: Candidate) -> bool:
    """True if the ranks' rows do not lie one after another in the whole."""
    shape, dim = shape_of(candidate.whole), candidate.dim
    return dim != len(shape) - 1 and math.prod(hint(each) for each in shape[:dim]) > 1


def _gather(writer: _Writer, candidate: Candidate) -> Node:
    """The operator's C stands for the GEMM's; its rows are in the order of the ranks."""
    a, dim, whole = candidate.a, candidate.dim, shape_of(candidate.whole)
    reordered = _reordered(candidate)
    made = writer.operator(candidate, writer.matrix(writer.moved(a, dim, 0) if reordered else a))
    result = made
    if candidate.returns_a:
        result = writer.add(operator.getitem, made, 0)
        gathered = writer.reshaped(writer.add(operator.getitem, made, 1), whole)
        late = [node for node in _reshapes_of(candidate.whole) if node < candidate.gemm]
        candidate.whole.replace_all_uses_with(gathered)
        for node in late:  # they stand before the operator, which makes what they take
            candidate.gemm.prepend(node)
    if reordered:
        rest = [size for place, size in enumerate(whole[:-1]) if place != dim]
        apart = writer.add(ATEN.reshape.default, made, [whole[dim], *rest, shape_of(made)[-1]])
        result = writer.matrix(writer.moved(apart, 0, dim))
    replaced = candidate.gate.result if candidate.gate is not None else candidate.gemm
    replaced.replace_all_uses_with(writer.reshaped(result, shape_of(replaced)))
    return made


def _scatter(writer: _Writer, candidate: Candidate) -> Node:
    a, dim, whole = candidate.a, candidate.dim, shape_of(candidate.whole)
    scattered, reordered = shape_of(candidate.wait), _reordered(candidate)
    if reordered:
        apart = writer.add(ATEN.reshape.default, a, [*whole[:-1], shape_of(a)[-1]])
        a = writer.matrix(writer.moved(apart, dim, 0))
    made = writer.operator(candidate, a)
    result = _averaged(writer, candidate, made)
    if reordered:
        rest = [size for place, size in enumerate(scattered[:-1]) if place != dim]
        apart = writer.add(ATEN.reshape.default, result, [scattered[dim], *rest, scattered[-1]])
        result = writer.moved(apart, 0, dim)
    _replace_sum(writer, candidate, writer.reshaped(result, scattered))
    return made


def _replace_sum(writer: _Writer, candidate: Candidate, result: Node) -> None:
    """The result, with what is added to it where that is the operator's part."""
    if candidate.added is None:
        candidate.wait.replace_all_uses_with(result)
    else:
        candidate.added.replace_all_uses_with(writer.reshaped(result, shape_of(candidate.added)))


def _reshapes_of(node: Node) -> Iterator[Node]:
    """Reshapes behind a node, directly or through other reshapes, in the graph's order."""
    for user in sorted(node.users):
        if user.target in RESHAPES:
            yield user
            yield from _reshapes_of(user)


def _reduce(writer: _Writer, candidate: Candidate) -> Node:
    made = writer.operator(candidate, candidate.a)
    whole = candidate.collective.args[0]
    assert isinstance(whole, Node)
    result = _averaged(writer, candidate, made)
    if whole is not candidate.gemm:  # the reshapes between stay, with the symbols that they may have
        result = _replayed(writer, whole, candidate.gemm, result)
    _replace_sum(writer, candidate, result)
    return made


def _normalise(writer: _Writer, candidate: Candidate) -> Node:
    """The operator's results stand for the norm's, for the total, and for the scales of a norm in fp8."""
    norm = candidate.norm
    assert norm is not None
    made = writer.operator(candidate, writer.matrix(candidate.a))
    normed, total, *scales = (writer.add(operator.getitem, made, place) for place in range(2 + candidate.quantises))
    totals = [each for each in (norm.total, *norm.rounded) if value_of(each).dtype == value_of(norm.sum).dtype]
    pairs = [(norm.normed, normed)] if not norm.quantised else []
    for each in norm.quantised:
        pairs += [(each.a, normed), (each.scale, scales[0])]
    for node, result in (*pairs, *((each, total) for each in totals)):
        node.replace_all_uses_with(writer.reshaped(result, shape_of(node)))
    return made


def _replayed(writer: _Writer, node: Node, first: Node, instead: Node) -> Node:
    """The chain of reshapes from ``first`` to a node, of another tensor."""
    if node is first:
        return instead
    source = node.args[0]
    assert isinstance(source, Node)
    return writer.add(node.target, _replayed(writer, source, first, instead), *node.args[1:], **node.kwargs)


def _averaged(writer: _Writer, candidate: Candidate, total: Node) -> Node:
    if not candidate.averages:
        return total
    return writer.add(ATEN.div.Tensor, total, writer.ranks)
