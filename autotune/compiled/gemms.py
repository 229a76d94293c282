"""A graph's GEMMs: mm, addmm with a bias, and fp8 by scales, with their operands as operators take them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from autotune.compiled.graphs import ATEN, GATHER, RESHAPES, TURNS, WAIT, NoMatch, named, same, shape_of, value_of
from autotune.kernels.gemm.block_scaled import block_scaled_mm
from autotune.kernels.gemm.problem import scale_shapes
from autotune.kernels.launching.tensors import TORCH_DTYPES

SCALED, BY_RECIPE = ATEN._scaled_mm.default, getattr(ATEN, "_scaled_mm_v2", ATEN._scaled_mm).default
"""The second is what ``torch.nn.functional.scaled_mm`` becomes."""
BY_BLOCKS = block_scaled_mm._opoverload
FP8_GEMMS = (SCALED, BY_RECIPE, BY_BLOCKS)
GEMMS = (ATEN.mm.default, ATEN.addmm.default, *FP8_GEMMS)

ARGUMENTS: Mapping[Any, tuple[str, ...]] = {
    BY_RECIPE: ("a", "b", "scale_a", "recipe_a", "swizzle_a", "scale_b", "recipe_b", "swizzle_b", "bias", "out_dtype",
                "contraction_dim", "use_fast_accum"),
    SCALED: ("a", "b", "scale_a", "scale_b", "bias", "scale_result", "out_dtype", "use_fast_accum"),
    BY_BLOCKS: ("a", "b", "scale_a", "scale_b", "bias", "out_dtype"),
}  # fmt: skip
"""Names of the arguments. Where torch has no ``scaled_mm`` the second row takes the first one's place."""


@dataclass(frozen=True)
class Gemm:
    """A GEMM's operands. Scales are None unless it is of fp8."""

    a: Node
    b: Node
    bias: Node | None
    scale_a: Node | None = None
    scale_b: Node | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """The operator's options that differ from the problem's defaults."""

    @property
    def operands(self) -> dict[str, Node]:
        """B and what else there is, by the operators' names."""
        given = {"b": self.b, "bias": self.bias, "scale_a": self.scale_a, "scale_b": self.scale_b}
        return {name: node for name, node in given.items() if node is not None}


def gemm_of(node: Node) -> Gemm:
    """Raises NoMatch for what is no GEMM with a bias: an ``addmm`` with factors, a scaled result."""
    if node.target in FP8_GEMMS:
        return _scaled(node)
    if node.kwargs and any(value != 1 for value in node.kwargs.values()):
        raise NoMatch(f"the GEMM has factors ({dict(node.kwargs)})")
    arguments: list[Any] = list(node.args)
    bias = arguments.pop(0) if node.target is ATEN.addmm.default else None
    return Gemm(arguments[0], arguments[1], bias)


def _scaled(node: Node) -> Gemm:
    given = _given(node)
    swizzles = [given.get("swizzle_a"), given.get("swizzle_b")]
    if given.get("contraction_dim") or any(each not in (None, [], [0]) for each in swizzles):
        raise NoMatch("the GEMM's scales are swizzled, or it contracts other dimensions")
    if given.get("scale_result") is not None:
        raise NoMatch("the GEMM's result has a scale")
    if node.target is BY_BLOCKS or not _one_column(given["scale_a"]):
        _check_blocks(given)
    words = {dtype: word for word, dtype in TORCH_DTYPES.items()}
    result = value_of(node).dtype
    if result not in words:
        raise NoMatch(f"the GEMM's result is {str(result).removeprefix('torch.')}")
    options = {"out_dtype": words[result], "fast_accum": bool(given.get("use_fast_accum", False))}
    return Gemm(given["a"], given["b"], given.get("bias"), _in_rows(given["scale_a"]), given["scale_b"], options)


def _given(node: Node) -> dict[str, Any]:
    """A scaled GEMM's arguments by name. Raises NoMatch where an operand has several scales."""
    given: dict[str, Any] = {**dict(zip(ARGUMENTS[node.target], node.args, strict=False)), **node.kwargs}
    for name in ("scale_a", "scale_b"):
        if not isinstance(given[name], Node):
            if len(given[name]) != 1:
                raise NoMatch(f"{name} is {len(given[name])} tensors")
            (given[name],) = given[name]
    return given


def _check_blocks(given: Mapping[str, Node]) -> None:
    """Raise NoMatch unless A has a scale for each 1 x 128, and B one for each 128 x 128."""
    (rows, width), (depth, columns) = shape_of(given["a"]), shape_of(given["b"])
    found = [shape_of(given[name]) for name in ("scale_a", "scale_b")]
    wanted = scale_shapes("block", (rows, width), (depth, columns))
    if not all(len(one) == len(other) and all(map(same, one, other)) for one, other in zip(found, wanted, strict=True)):
        raise NoMatch(f"the scales are {list(found[0])} and {list(found[1])}, by blocks {wanted} expected")


def is_scale(node: Node, user: Node) -> bool:
    """True if a GEMM takes a tensor as a scale."""
    if user.target not in FP8_GEMMS:
        return False
    given = _given(user)
    return node in (given["scale_a"], given["scale_b"])


def bytes_of(node: Node) -> Node:
    """A tensor of fp8, seen as bytes on its way through a collective: the tensor itself."""
    seen: Any = node
    while seen.target in (ATEN.detach.default, ATEN.alias.default):
        seen = seen.args[0]
    if seen.target is not ATEN.view.dtype:
        return node
    source: Node = seen.args[0]
    return source if value_of(source).element_size() == value_of(node).element_size() else node


def _in_rows(scale: Node) -> Node:
    """The scales row by row: those of blocks are turned, copied and turned back before the library takes them."""
    turned, node = False, scale
    while turned or not value_of(node).is_contiguous():
        if node.target in TURNS and value_of(node).dim() == 2:
            turned = not turned
        elif node.target not in RESHAPES:
            raise NoMatch(f"A's scales by blocks are not put in rows before {named(node)}")
        (node,) = node.all_input_nodes
    return node


def scale_before_gather(scale: Node, collective: Node) -> Node:
    """The scales of a rank's rows, which are gathered as A is; one for all of A is taken as it stands."""
    value = value_of(scale)
    if value.dim() == 0 or all(size == 1 for size in value.shape):
        return scale
    node, columns = scale, _columns(scale)
    while node.target in RESHAPES and _columns(node) == columns:
        source = node.args[0]
        assert isinstance(source, Node)
        node = source
    gathered: Any = node.args[0] if node.target is WAIT else None
    if gathered is None or gathered.target is not GATHER or gathered.args[1:] != collective.args[1:]:
        raise NoMatch(f"the scales of A's rows come from {named(node)}, not from a gather like A's")
    shard: Any = gathered.args[0]
    while shard.target in RESHAPES and value_of(shard).dim() != 2:
        shard = shard.args[0]
    if value_of(shard).dim() != 2 or _columns(shard) != columns:
        raise NoMatch(f"the scales of A's rows are gathered as {list(value_of(shard).shape)}, not as {columns} a row")
    made: Node = shard
    return made


def _columns(node: Node) -> int:
    """The number of scales that each row has."""
    return math.prod(shape_of(node)[1:])


def _one_column(node: Node) -> bool:
    return _columns(node) == 1


def column_of(scale: torch.Tensor) -> tuple[int, ...]:
    """The shape in which an operator takes a scale: [1] where it is one number."""
    return (1,) if scale.dim() == 0 or scale.numel() == 1 else tuple(scale.shape)
