"""SwiGLU and GeGLU behind a GEMM: found by what a graph's pointwise nodes compute, however they are written."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from autotune.compiled.graphs import ATEN, CASTS, DTYPES, SPLITS, NoMatch, behind_reshapes, same, shape_of, value_of


def _gelu(x: float, approximate: str = "none") -> float:
    if approximate == "tanh":
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _plus(x: float, y: float, alpha: float = 1) -> float:
    return x + alpha * y


POINTWISE: Mapping[Any, Callable[..., Any]] = {
    ATEN.neg.default: operator.neg, ATEN.exp.default: math.exp, ATEN.tanh.default: math.tanh,
    ATEN.erf.default: math.erf, ATEN.erfc.default: math.erfc, ATEN.reciprocal.default: lambda x: 1 / x,
    ATEN.sigmoid.default: _sigmoid, ATEN.silu.default: lambda x: x * _sigmoid(x), ATEN.gelu.default: _gelu,
    ATEN.add.Tensor: _plus, ATEN.add.Scalar: _plus, ATEN.sub.Tensor: lambda x, y, alpha=1: x - alpha * y,
    ATEN.mul.Tensor: operator.mul, ATEN.mul.Scalar: operator.mul, ATEN.div.Tensor: operator.truediv,
    ATEN.div.Scalar: operator.truediv, ATEN.pow.Tensor_Scalar: operator.pow,
    **dict.fromkeys(CASTS, lambda x, *_, **__: x),
}  # fmt: skip
"""Operations of which an activation may be made, of numbers: while a graph is compiled, tensors have no values."""

MOST_NODES = 24
"""Nodes of an activation; the longest way to write a GELU takes half as many."""

EPILOGUES: Mapping[str, Callable[[float, float], float]] = {
    "swiglu": lambda gate, up: gate * _sigmoid(gate) * up,
    "geglu": lambda gate, up: _gelu(gate) * up,
    "geglu_tanh": lambda gate, up: _gelu(gate, "tanh") * up,
}

POINTS = [(0.0917 * step - 8.3, 3 * math.cos(37 * step) + 0.01) for step in range(181)]
"""Gates and ups; GELU and its tanh form differ by 5e-4."""

CLOSE = 1e-7
"""Largest difference of two ways to write one function, in double precision."""


@dataclass(frozen=True)
class Gate:
    """The activation behind the GEMM of gate and up."""

    result: Node
    """activation(gate) * up, in the GEMM's type."""
    epilogue: str
    gate_up: str = "halves"


def gate_behind(product: Node) -> Gate | None:
    """The gate behind a GEMM whose halves, or every other columns, are gate and up; None if nothing splits its result.

    Raises NoMatch if it is split, but no operator computes what follows.
    """
    parts, gate_up = _parts(behind_reshapes(product))
    if parts is None:
        return None
    return Gate(*_activated(*parts, value_of(product).dtype), gate_up)


def epilogue_of_two(gate: Node, up: Node) -> str | None:
    """The activation of two GEMMs' results, if an operator computes it of one; else None."""
    try:
        return _activated(behind_reshapes(gate), behind_reshapes(up), value_of(gate).dtype)[1]
    except NoMatch:
        return None


def _parts(source: Node) -> tuple[tuple[Node, Node] | None, str]:
    """Gate and up, and how they lie in a matrix that nothing else uses."""
    users, last = list(source.users), len(shape_of(source)) - 1
    if len(users) == 1 and users[0].target in SPLITS:
        found = sorted(users[0].users, key=lambda each: int(str(each.args[1])))
        along = (users[0].args[2] if len(users[0].args) > 2 else users[0].kwargs.get("dim", 0)) in (last, -1)
        if along and len(found) == 2 and all(each.target is operator.getitem for each in found):
            widths = [shape_of(each)[-1] for each in found]
            halves = same(*widths) and same(sum(widths), shape_of(source)[-1])  # and no third part, which nothing uses
            return ((found[0], found[1]) if halves else None), "halves"
        return None, ""
    cuts = {_cut(each, last, shape_of(source)[-1]): each for each in users}
    for gate_up, wanted in (("halves", (0, 1)), ("interleaved", ("even", "odd"))):
        if len(users) == 2 and set(cuts) == set(wanted):
            return (cuts[wanted[0]], cuts[wanted[1]]), gate_up
    return None, ""


def _cut(node: Node, last: int, columns: Any) -> int | str | None:
    """A slice as the first or second half of the columns, or as the even or odd ones."""
    if node.target is not ATEN.slice.Tensor or not isinstance(columns, int):
        return None
    given: list[Any] = list(node.args[1:])
    dim, start, end, step = given + [0, None, None, 1][len(given) :]
    if dim not in (last, -1) or columns % 2:
        return None
    cut = 0 if start is None else start, columns if end is None else min(end, columns), step
    halves: dict[Any, int | str] = {
        (0, columns // 2, 1): 0, (columns // 2, columns, 1): 1, (0, columns, 2): "even", (1, columns, 2): "odd",
    }  # fmt: skip
    return halves.get(cut)


def _activated(gate: Node, up: Node, dtype: torch.dtype) -> tuple[Node, str]:
    """The node that gate and up end in, and the activation's name."""
    region = _region(gate, up)
    result = region[-1]
    if value_of(result).dtype != dtype:
        casts = [each for each in result.users if each.target in CASTS and value_of(each).dtype == dtype]
        if len(casts) != 1 or len(result.users) != 1:
            raise NoMatch(f"gate and up become {value_of(result).dtype}, the GEMM's type is {dtype}")
        result = casts[0]
    for epilogue, function in EPILOGUES.items():
        if _equal(region, gate, up, function):
            return result, epilogue
        if _equal(region, up, gate, function):
            raise NoMatch(f"up lies before the gate in B; the operator's {epilogue} takes the gate first")
    raise NoMatch("what follows gate and up is neither SwiGLU nor GeGLU")


def _region(gate: Node, up: Node) -> list[Node]:
    """The pointwise nodes from gate and up to the first one through which all of it goes, in order."""
    found: list[Node] = [gate, up]
    while len(found) < MOST_NODES:
        inside = set(found)
        beyond = sorted({user for node in found for user in node.users} - inside)
        ready = [each for each in beyond if each.target in POINTWISE and set(each.all_input_nodes) <= inside]
        if not ready or ready[0] is not beyond[0] or value_of(ready[0]).dtype not in DTYPES:
            break
        found.append(ready[0])
        if all(set(node.users) <= set(found) for node in found[:-1]):
            return found[2:]
    raise NoMatch("gate and up are also used apart, or not by pointwise operations")


def _equal(region: list[Node], gate: Node, up: Node, function: Callable[[float, float], float]) -> bool:
    """True if the region computes this function of gate and up."""
    try:
        return all(abs(_computed(region, {gate: x, up: y}) - function(x, y)) < CLOSE for x, y in POINTS)
    except (ArithmeticError, TypeError, ValueError):  # another function, which is not defined for these numbers
        return False


def _computed(region: list[Node], values: dict[Node, Any]) -> Any:
    for node in region:
        arguments: Any = torch.fx.node.map_arg(node.args, values.__getitem__)
        values[node] = POINTWISE[node.target](*arguments, **node.kwargs)
    return values[region[-1]]
