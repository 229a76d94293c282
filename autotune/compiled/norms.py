"""Residual and RMSNorm behind a sum over ranks, as torch, transformers and serving stacks write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from autotune.compiled.graphs import ATEN, CASTS, NoMatch, alike, behind_reshapes, named, rounds, shape_of, value_of
from autotune.compiled.quantising import Quantised, quantised_behind, scales_of

OF_ANOTHER_TYPE = "the norm has no weight for each column, or its result has another type than the sum"

ADDS = {ATEN.add.Tensor, ATEN.add.Scalar, ATEN.add_.Scalar}


@dataclass(frozen=True)
class Norm:
    """total = sum + residual, normed = total / rms(total) * weight."""

    sum: Node
    """The sum over ranks, in the dimensions of the residual."""
    residual: Node
    weight: Node
    eps: float
    total: Node
    """The sum with its residual, in the sum's type, or wider if only the norm takes it."""
    rounded: tuple[Node, ...]
    """Further nodes that are the total in the sum's type."""
    normed: Node
    """In the sum's type, or wider where it is only quantised."""
    quantised: Sequence[Quantised] = ()
    """The norm's quantisations, one for each GEMM, where nothing else uses it."""
    scales: str = ""
    """``row`` or ``block``, of the norm in fp8."""
    beside: str = ""
    """The reason why a quantisation behind it is not the operator's part."""


def norm_behind(result: Node) -> Norm | None:
    """The norm behind a sum that nothing else uses; None without addition and norm. Raises NoMatch for another norm."""
    summed = behind_reshapes(result)
    found = _total(summed)
    if found is None:
        return None
    total, residual, rounded = found
    for wide in _widened(total):
        for square in wide.users:
            if _is_square(square, wide):
                weight, eps, normed = _normed(square, set(_widened(total)), value_of(summed).dtype)
                if value_of(total).dtype != value_of(summed).dtype:
                    _check_wide(total, square, rounded)
                return _quantised(Norm(summed, residual, weight, eps, total, rounded, normed))
    return None


def _quantised(norm: Norm) -> Norm:
    """With what the norm becomes in fp8, or the reason why that is none of an operator's."""
    try:
        quantised = quantised_behind(norm.normed)
        scales = {scales_of(each) for each in quantised}
        if len(scales) > 1:
            raise NoMatch("the norm is quantised by rows and by blocks")
        found = dataclasses.replace(norm, quantised=quantised, scales="".join(scales))
    except NoMatch as error:
        found = dataclasses.replace(norm, beside=f"the norm's quantisation is left: {error}")
    if not found.quantised and value_of(norm.normed).dtype != value_of(norm.sum).dtype:
        raise NoMatch("; ".join(filter(None, (OF_ANOTHER_TYPE, found.beside))))
    return found


def _total(summed: Node) -> tuple[Node, Node, tuple[Node, ...]] | None:
    """The total, its residual, and the total rounded, where the addition is of a wider type."""
    (user, *others) = list(summed.users) or [summed]
    if others:
        return None
    if user.target is ATEN.add.Tensor and not user.kwargs:
        other = _other(user, summed)
        return (user, other, ()) if other is not None and alike(other, summed) else None
    if rounds(user) and len(user.users) == 1:  # serving stacks add in fp32
        (added,) = user.users
        other = _other(added, user) if added.target is ATEN.add.Tensor and not added.kwargs else None
        residual: Any = other.args[0] if other is not None and rounds(other) else None
        if residual is not None and alike(residual, summed):
            dtype = value_of(summed).dtype
            rounded = (each for each in added.users if each.target in CASTS and value_of(each).dtype == dtype)
            return added, residual, tuple(rounded)
    return None


def _check_wide(total: Node, square: Node, rounded: tuple[Node, ...]) -> None:
    """Raise NoMatch if a total in fp32, which no operator gives back, is used beside its norm."""
    for user in total.users:
        scaled = any(each.target is ATEN.rsqrt.default for each in user.all_input_nodes)
        if user is not square and user not in rounded and not scaled:
            raise NoMatch(f"the total in {value_of(total).dtype} is also used by {named(user)}")


def _other(user: Node, one: Node) -> Node | None:
    others = [each for each in user.args if each is not one]
    return others[0] if len(others) == 1 and isinstance(others[0], Node) else None


def _widened(total: Node) -> list[Node]:
    """The total and its casts, those of them in fp32, in which a norm has to be computed."""
    casts = [user for user in total.users if user.target in CASTS]
    return [each for each in (total, *casts) if value_of(each).dtype == torch.float32]


def _is_square(node: Node, x: Node) -> bool:
    return node.args == (x, 2) if node.target is ATEN.pow.Tensor_Scalar else node.args == (x, x)


def _normed(square: Node, total: set[Node], dtype: torch.dtype) -> tuple[Node, float, Node]:
    """The weight, eps and result of a norm that begins with these squares."""
    mean = _next(square, {ATEN.mean.dim})
    last = len(shape_of(square)) - 1
    dims: Any = mean.args[1]
    if [each % (last + 1) for each in dims] != [last] or mean.args[2:3] != (True,):
        raise NoMatch("the norm's mean is not that of a row")
    added = _next(mean, ADDS)
    eps = added.args[1]
    if not isinstance(eps, float | int):
        raise NoMatch("the norm's eps is not a number")
    root = _next(added, {ATEN.rsqrt.default})
    scaled = _next(root, {ATEN.mul.Tensor})
    if _other(scaled, root) not in total:
        raise NoMatch(f"a norm's root mean square multiplies {named(scaled)}, not its own input")
    weight, normed = _weighted(scaled, dtype)
    return weight, float(f"{eps:.7g}"), normed


def _weighted(scaled: Node, dtype: torch.dtype) -> tuple[Node, Node]:
    """The product with the weight, in the sum's type; casts may lie before it and after it. Wider where no one cast
    follows.
    """
    weight: Node | None = None
    for node in _followed(scaled):
        if node.target is ATEN.mul.Tensor and node is not scaled:
            vectors = [each for each in node.all_input_nodes if len(shape_of(each)) == 1]
            if len(vectors) != 1 or weight is not None:  # a second factor is none of the operator's
                break
            weight = vectors[0]
            if rounds(weight):
                weight = weight.all_input_nodes[0]
        if weight is not None and value_of(node).dtype == dtype:
            return weight, node
    else:
        if weight is not None:
            return weight, node
    raise NoMatch(OF_ANOTHER_TYPE)


def _followed(node: Node) -> Iterator[Node]:
    """A node, and the casts and products behind it, as long as each has one user."""
    while True:
        yield node
        (user, *others) = list(node.users) or [node]
        if others or user is node or not (rounds(user) or user.target is ATEN.mul.Tensor):
            return
        node = user


def _next(node: Node, targets: set[Any]) -> Node:
    """The one user of a part of the norm."""
    (user, *others) = list(node.users) or [node]
    if others:
        raise NoMatch("a part of the norm is also used elsewhere, as for a backward")
    if user.target not in targets:
        raise NoMatch(f"the total is not followed by an RMSNorm: {named(node)}, then {named(user)}")
    return user
