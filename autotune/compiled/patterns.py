"""The collectives of a graph with the GEMM before or behind them, as DTensor and functional collectives make them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional

GATHER = C10D.all_gather_into_tensor.default
SCATTER = C10D.reduce_scatter_tensor.default
REDUCE = C10D.all_reduce.default
WAIT = C10D.wait_tensor.default

WORKLOADS: dict[Any, str] = {GATHER: "all_gather_gemm", SCATTER: "gemm_reduce_scatter", REDUCE: "gemm_all_reduce"}

RESHAPES = {
    ATEN.view.default, ATEN.reshape.default, ATEN._unsafe_view.default, ATEN.unsqueeze.default, ATEN.squeeze.dim,
    ATEN.squeeze.dims, ATEN.flatten.using_ints, ATEN.alias.default, ATEN.detach.default, ATEN.clone.default,
}  # fmt: skip
"""They keep the order of a tensor's elements, whatever its strides."""

SPLITS = {ATEN.split.Tensor, ATEN.split_with_sizes.default}

SUMS = ("sum", "avg")


class NoMatch(Exception):
    """Not what an operator computes; the message says why."""


@dataclass(frozen=True)
class Candidate:
    """A collective and its GEMM, which one operator could compute together."""

    collective: Node
    wait: Node
    """Its result; of an all-reduce in place the copy back."""
    gemm: Node
    """An ``mm``, or an ``addmm`` with a bias."""
    a: Node
    """This rank's shard of what is gathered; before a sum the GEMM's own A."""
    b: Node
    bias: Node | None
    dim: int
    """The dimension that is gathered or scattered, of ``whole``."""
    whole: Node
    """The gathered tensor, or the one to be summed, in all its dimensions."""
    returns_a: bool = False
    """The operator also gives back the gathered tensor, for others that use it."""
    residual: Node | None = None
    added: Node | None = None
    """The sum's sum with ``residual``."""

    @property
    def workload(self) -> str:
        return WORKLOADS[self.collective.target]

    @property
    def group(self) -> Any:
        """The process group's name."""
        return self.collective.args[-1]

    @property
    def averages(self) -> bool:
        return self.collective.target is not GATHER and self.collective.args[1] == "avg"


Option = list[Candidate] | str
"""GEMMs that are replaced together, or the reason why there are none that an operator takes."""


def candidates(graph: Graph) -> Iterator[tuple[Node, list[Option]]]:
    """Every collective of these kinds in order, with the ways to replace it, the plainest first; one at least."""
    finders: dict[Any, Callable[[Node], list[Option]]] = {GATHER: _gathered, SCATTER: _summed, REDUCE: _summed}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in finders:
            try:
                yield node, finders[node.target](node)
            except NoMatch as error:
                yield node, [str(error)]


def shape_of(node: Node) -> Sequence[Any]:
    """With symbols for what is not known."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NoMatch(f"{node.name} has no known shape")
    return value.shape


def same(one: Any, other: Any) -> bool:
    """Equal sizes; of symbols those that are written alike."""
    return str(one) == str(other)


def _gathered(collective: Node) -> list[Option]:
    """An operator for each GEMM; or one for the first GEMM, which gives back what is gathered for all else."""
    shard, ranks, wait = collective.args[0], collective.args[1], _wait(collective)
    assert isinstance(shard, Node)
    whole, dim = _rejoined(wait, shard, ranks)
    users = sorted(_users_behind_reshapes(whole), key=lambda each: each[0])
    gemms = [each for each in users if each[0].target in (ATEN.mm.default, ATEN.addmm.default)]
    if not gemms:
        used = ", ".join(sorted({_named(each) for each, _ in users})) or "nothing"
        raise NoMatch(f"no GEMM takes what is gathered; it is used by {used}")
    each = [_behind_gather(gemm, taken, collective, wait, dim, whole) for gemm, taken in gemms]
    found: list[Option] = [each]
    if len(users) > len(gemms):
        others = ", ".join(sorted({_named(user) for user, taken in users if (user, taken) not in gemms}))
        found = [f"what is gathered is also used by {others}, so it has to be gathered anyway"]
    if len(users) > 1 and users[0] == gemms[0]:
        found.append([dataclasses.replace(each[0], returns_a=True)])
    return found


def _behind_gather(gemm: Node, taken: Node, collective: Node, wait: Node, dim: int, whole: Node) -> Candidate:
    a, b, bias = _operands(gemm)
    if a is not taken or b is taken:
        raise NoMatch("what is gathered is the GEMM's B, not its A")
    if bias is not None and len(shape_of(bias)) != 1:
        raise NoMatch(f"the GEMM adds a tensor of shape {list(shape_of(bias))}, which is no bias")
    shard = collective.args[0]
    assert isinstance(shard, Node)
    return Candidate(collective, wait, gemm, shard, b, bias, dim, whole)


def _summed(collective: Node) -> list[Option]:
    total, how, wait = collective.args[0], collective.args[1], _wait(collective)
    assert isinstance(total, Node)
    if how not in SUMS:
        raise NoMatch(f"the ranks reduce by {how}, operators by {' or '.join(SUMS)}")
    copied = _copied_back(wait, total)
    whole, dim = _unsplit(total, collective.args[2]) if collective.target is SCATTER else (total, 0)
    gemm = _gemm_before_reshapes(whole, {collective, copied} - {wait} if whole is total else None)
    a, b, bias = _operands(gemm)
    if dim == len(shape_of(whole)) - 1:
        raise NoMatch("the ranks share the columns of the sum; the operator shares its rows")
    bias = None if bias is None else _whole_bias(bias, how)
    plain = Candidate(collective, copied, gemm, a, b, bias, dim, whole)
    found: list[Option] = [[plain]]
    added = None if plain.averages else _added(copied)
    if added is not None:
        found.append([dataclasses.replace(plain, added=added[0], residual=added[1])])
    return found


def _copied_back(wait: Node, total: Node) -> Node:
    """The result of a collective in place: functional graphs copy it to what was summed, and go on with that."""
    (user, *others) = list(wait.users) or [wait]
    return user if not others and user.target is ATEN.copy.default and user.args[:2] == (total, wait) else wait


def _added(result: Node) -> tuple[Node, Node] | None:
    """The addition of a tensor of the same shape and type to a result that nothing else uses, and that tensor."""
    here = result
    while len(here.users) == 1:
        (user,) = here.users
        if user.target is ATEN.add.Tensor and not user.kwargs:
            return _residual(user, here)
        if user.target not in RESHAPES or not same(shape_of(user)[-1], shape_of(here)[-1]):
            return None
        here = user
    return None


def _residual(added: Node, summand: Node) -> tuple[Node, Node] | None:
    (other,) = [each for each in added.args if each is not summand] or [None]
    if not isinstance(other, Node) or not isinstance(other.meta.get("val"), torch.Tensor):
        return None
    value, mine = other.meta["val"], summand.meta["val"]
    fits = list(map(str, value.shape)) == list(map(str, mine.shape)) and value.dtype == mine.dtype
    return (added, other) if fits and value.is_contiguous() else None


def _whole_bias(bias: Node, how: Any) -> Node:
    """The bias of which every rank adds its share before the sum, as DTensor does: a parameter by the ranks."""
    divided = bias.target is ATEN.div.Tensor and isinstance(bias.args[0], Node) and bias.args[0].op == "placeholder"
    if how != "sum" or not divided or not isinstance(bias.args[1], int) or len(shape_of(bias)) != 1:
        raise NoMatch("each rank adds a bias of its own before the sum; add it behind, or let DTensor share it out")
    whole = bias.args[0]
    assert isinstance(whole, Node)
    return whole


def shares_of(bias: Node) -> int:
    """By which number a bias before a sum is divided."""
    divisor: Any = bias.args[1]
    return int(divisor)


def _wait(collective: Node) -> Node:
    users = list(collective.users)
    if len(users) != 1 or users[0].target is not WAIT:
        raise NoMatch(f"its result is used by {', '.join(map(_named, users)) or 'nothing'} before it is waited for")
    return users[0]


def _rejoined(wait: Node, shard: Node, ranks: Any) -> tuple[Node, int]:
    """The whole after a gather and its dimension: parts of another dimension than the first are split and joined."""
    (split, *others) = list(wait.users) or [wait]
    if others or split.target not in SPLITS:
        return wait, 0
    return _joined(split, list(shape_of(shard)), ranks)


def _joined(split: Node, part: list[Any], ranks: Any) -> tuple[Node, int]:
    joins = {join for each in split.users for join in each.users}
    join = joins.pop() if len(joins) == 1 else None
    if join is None or join.target is not ATEN.cat.default or not _parts_of(split, join.args[0], part, ranks):
        raise NoMatch("what is gathered is split, and not joined along another dimension")
    dim = join.args[1] if len(join.args) > 1 else 0
    assert isinstance(dim, int)
    return join, dim % len(part)


def _unsplit(total: Node, ranks: Any) -> tuple[Node, int]:
    """The whole before a scatter and its dimension: if not the first, it was split, and joined along the first."""
    if total.target is not ATEN.cat.default:
        return total, 0
    parts: Any = total.args[0]
    first: Node = parts[0]
    split = first.args[0] if first.target is operator.getitem else None
    if not isinstance(split, Node) or split.target not in SPLITS or len(total.users) != 1:
        raise NoMatch("what is summed is joined of several tensors")
    dim, whole = split.args[2] if len(split.args) > 2 else 0, split.args[0]
    assert isinstance(dim, int) and isinstance(whole, Node)
    if (total.args[1] if len(total.args) > 1 else 0) != 0 or len(whole.users) != 1:
        raise NoMatch("what is summed is split, and not joined along its first dimension alone")
    if not _parts_of(split, total.args[0], list(shape_of(first)), ranks):
        raise NoMatch("what is summed is not split into a part for each rank")
    return whole, dim % len(shape_of(whole))


def _parts_of(split: Node, joined: Any, part: list[Any], ranks: Any) -> bool:
    """True if a join takes all parts of a split in order, one for each rank, all of one shape."""
    return (
        len(joined) == len(split.users) == ranks
        and all(each.target is operator.getitem and each.args == (split, i) for i, each in enumerate(joined))
        and all(len(each.users) == 1 for each in joined)
        and all(all(map(same, shape_of(each), part)) for each in joined)
    )


def _users_behind_reshapes(node: Node) -> Iterator[tuple[Node, Node]]:
    """Users of a tensor's rows in their order, behind reshapes that keep the last dimension, with what each takes."""
    for user in node.users:
        if user.target in RESHAPES and same(shape_of(user)[-1], shape_of(node)[-1]):
            yield from _users_behind_reshapes(user)
        else:
            yield user, node


def _gemm_before_reshapes(node: Node, users: set[Node] | None) -> Node:
    """The GEMM whose rows a tensor has, in their order, and that nothing else needs."""
    while True:
        if users is not None and set(node.users) != users:
            others = ", ".join(_named(each) for each in node.users if each not in users)
            raise NoMatch(f"what is summed is also used by {others}")
        if node.target in (ATEN.mm.default, ATEN.addmm.default):
            return node
        source: Any = node.args[0] if node.args else None
        if node.target not in RESHAPES or not same(shape_of(source)[-1], shape_of(node)[-1]):
            raise NoMatch(f"what is summed comes from {_named(node)}, not from a GEMM")
        node, users = source, {node}


def _operands(gemm: Node) -> tuple[Node, Node, Node | None]:
    """A, B and the bias. An ``addmm`` with factors is no GEMM with a bias."""
    if gemm.kwargs and any(value != 1 for value in gemm.kwargs.values()):
        raise NoMatch(f"the GEMM has factors ({dict(gemm.kwargs)})")
    arguments: list[Any] = list(gemm.args)
    bias = arguments.pop(0) if gemm.target is ATEN.addmm.default else None
    return arguments[0], arguments[1], bias


def _named(node: Node) -> str:
    """For people. What enters or leaves a graph may be a whole graph elsewhere: a graph break lies between."""
    ends = {"output": "the graph's result", "placeholder": "outside the graph"}
    return ends.get(node.op) or str(getattr(node.target, "__name__", node.target))
