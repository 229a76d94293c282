"""The pass: vLLM's collectives in a graph, with the GEMM and the norm beside them, become our operators.

A graph is for a range of sizes. Where our operator gains somewhere in it, it stands in the graph, and runs vLLM's way
for the other sizes; with the borders of our table as ends of vLLM's ranges there are none.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, Node
from vllm.compilation.passes.inductor_pass import InductorPass, get_pass_context

from iris_autotune_vllm.settings import LOG

ATEN = torch.ops.aten


class Fusing(InductorPass):
    """Without state that matters: vLLM pickles it to its workers, whose layers read the table."""

    def __init__(self) -> None:
        self._told = set[str]()

    def __call__(self, graph: Graph) -> None:
        from vllm.distributed import get_tp_group

        from iris_autotune_vllm import tables

        table = tables.joined()
        if table is None:
            return
        tp = get_tp_group()
        for collective in list(graph.nodes):
            find = _finders().get(collective.target)
            if find is None or collective._erased or collective.args[-1] != tp.unique_name:
                continue
            span = get_pass_context().compile_range
            sizes = tables.sizes(table, span.start, span.end)
            ways = [_judged(way, table, sizes) for way in find(collective)]
            best = max(ways, key=lambda way: way.gain, default=None)
            if tp.rank_in_group == 0:
                self._tell(f"{collective.target}, {span.start} to {span.end} tokens", ways, best)
            if best is not None and best.gain > 0:
                _rewrite(graph, best)

    def _tell(self, what: str, ways: list[Way], best: Way | None) -> None:
        """A line for each kind of collective and range, once."""
        told = "; ".join(
            f"{way.name} {'taken' if way is best and way.gain > 0 else 'left'}, {way.reason}" for way in ways
        )
        line = f"{what}: {told or 'left: no GEMM before it or behind it, and no norm, that an operator takes'}"
        if line not in self._told:
            self._told.add(line)
            LOG.info("iris-autotune: %s", line)

    def uuid(self) -> str:
        """Part of the keys of vLLM's caches. The table is one on all ranks, and so is this."""
        from iris_autotune_vllm import tables

        table = tables.joined()
        return "off" if table is None else _key(table)


@functools.cache
def _key(table: Any) -> str:
    """Sources and table: a look-up for it, asked some forty times a start, would read all entries again."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files) + table.digest.encode()).hexdigest()


@dataclass
class Way:
    """An operator that could stand for a collective and what is around it."""

    name: str
    operands: dict[str, Node | None]
    """By the names of our operator, and in the order of the graph's."""
    last: Node
    """The node behind which nothing of it comes: the operator stands there."""
    results: dict[Node, int | None]
    """What it replaces, by the operator's result; None where it has one."""
    group: str
    options: dict[str, Any] = field(default_factory=dict)
    gain: float = 0.0
    reason: str = ""


def _judged(way: Way, table: Any, sizes: list[int]) -> Way:
    """With the microseconds that it saves at these numbers of tokens together, and the reason where it saves most."""
    told = [_saved(way, table, tokens) for tokens in sizes]
    way.gain = sum(gain for gain, _ in told)
    way.reason = max(told, key=operator.itemgetter(0))[1]
    return way


def _saved(way: Way, table: Any, tokens: int) -> tuple[float, str]:
    from autotune.compiled import served
    from autotune.compiled.graphs import NoMatch

    try:
        operands = {name: _stand_in(node, tokens) for name, node in way.operands.items() if node is not None}
        operands = {"residual": operands.get("x"), **operands}  # zeros, before a first norm
        problem = served.problem_of(table, way.name, operands, way.options)
        gain, reason = table.gain(problem)
    except NoMatch as error:
        return 0.0, str(error)
    return gain, f"{problem}: {reason}"


def _stand_in(node: Node, tokens: int) -> torch.Tensor:
    """A tensor without memory, for so many tokens."""
    value = node.meta["val"]
    shape, strides = ([_size(each, tokens) for each in sizes] for sizes in (value.shape, value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")


def _size(size: Any, tokens: int) -> int:
    """Sizes of a graph are numbers, or follow from the one symbol, the number of tokens."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, tokens)))


@functools.cache
def _finders() -> dict[Any, Callable[[Node], Iterator[Way]]]:
    vllm = torch.ops.vllm
    return {
        vllm.all_reduce.default: _reduced, vllm.reduce_scatter.default: _scattered, vllm.all_gather.default: _gathered,
    }  # fmt: skip


def _reduced(collective: Node) -> Iterator[Way]:
    """The GEMM before an all-reduce, the norm behind it, and both."""
    from iris_autotune_vllm.layers import BIASED

    x, group = collective.args
    gemm = _gemm(x)
    if gemm is not None and tuple(gemm["b"].meta["val"].shape) in BIASED:
        gemm = None
    if gemm is not None:
        yield Way("gemm_all_reduce", gemm, collective, {collective: None}, group)
    norm = _norm(collective)
    if norm is None:
        return
    last, residual, weight, eps = norm
    options, results = {"eps": eps}, {last: 0, collective: 1} if residual is None else {last: None}
    yield Way("all_reduce_norm", {"x": x, "residual": residual, "weight": weight}, last, results, group, options)
    if gemm is not None and residual is not None:
        operands = {**gemm, "residual": residual, "weight": weight}
        yield Way("gemm_all_reduce_norm", operands, last, results, group, options)


def _norm(total: Node) -> tuple[Node, Node | None, Node, float] | None:
    """The norm behind a sum, its residual if it has one, weight and eps."""
    ir = torch.ops.vllm_ir
    for user in total.users:
        if user.kwargs or user.args[0] is not total:
            continue
        if user.target is ir.fused_add_rms_norm.default and len(total.users) == 1:
            _, residual, weight, eps, *rest = user.args
        elif user.target is ir.rms_norm.default and not any(each < user for each in total.users):
            _, weight, eps, *rest = user.args
            residual = None
        else:
            continue
        if isinstance(weight, Node) and rest in ([], [None]):
            return user, residual, weight, eps
    return None


def _scattered(collective: Node) -> Iterator[Way]:
    x, dim, _, group = collective.args
    gemm = _gemm(x)
    if gemm is not None and dim == 0:
        yield Way("gemm_reduce_scatter", gemm, collective, {collective: None}, group)


def _gathered(collective: Node) -> Iterator[Way]:
    a, dim, _, group = collective.args
    (user, *others) = list(collective.users) or [collective]
    if user.target is ATEN.mm.default and user.args[0] is collective and not others and dim == 0:
        yield Way("all_gather_gemm", {"a": a, "b": user.args[1]}, user, {user: None}, group)


def _gemm(product: Any) -> dict[str, Node] | None:
    """The operands of a GEMM with weights that nothing else needs."""
    if product.target is not ATEN.mm.default or len(product.users) != 1:
        return None
    a, b = product.args
    return {"a": a, "b": b} if all(isinstance(size, int) for size in b.meta["val"].shape) else None


def _rewrite(graph: Graph, way: Way) -> None:
    """The operator in place of what it computes. Nodes get their values alone: other metadata is of other calls."""
    from iris_autotune_vllm.operators import IN_GRAPHS

    with graph.inserting_before(way.last):
        given = (*way.operands.values(), *way.options.values(), way.group)
        made = graph.call_function(getattr(IN_GRAPHS, way.name).default, given)
        values = [node.meta["val"] for node in way.results]
        made.meta["val"] = values[0] if len(values) == 1 else tuple(values)
        for node, place in way.results.items():
            result = made
            if place is not None:
                result = graph.call_function(operator.getitem, (made, place))
                result.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(result)
    unused = list(way.results)
    while unused:
        node = unused.pop()
        replaced = node in way.results or node.target in (*_finders(), ATEN.mm.default)
        if replaced and not node.users and not node._erased:
            unused += node.all_input_nodes
            graph.erase_node(node)
