"""The collectives of a graph with the GEMM before or behind them, as DTensor and functional collectives make them."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, Node

from autotune.compiled.gates import Gate, epilogue_of_two, gate_behind
from autotune.compiled.gemms import GEMMS, bytes_of, column_of, gemm_of, is_scale, scale_before_gather
from autotune.compiled.graphs import (
    ATEN,
    GATHER,
    REDUCE,
    RESHAPES,
    SCATTER,
    SPLITS,
    TURNS,
    WAIT,
    NoMatch,
    alike,
    behind_reshapes,
    keeps_columns,
    named,
    same,
    shape_of,
    value_of,
)
from autotune.compiled.norms import Norm, norm_behind
from autotune.compiled.quantising import Moved, before_gather, quantised_behind

WORKLOADS: dict[Any, str] = {GATHER: "all_gather_gemm", SCATTER: "gemm_reduce_scatter", REDUCE: "gemm_all_reduce"}

SUMS = ("sum", "avg")


@dataclass(frozen=True)
class Candidate:
    """A collective, its GEMM and what follows, which one operator could compute together."""

    collective: Node
    wait: Node
    """The collective's result; for an all-reduce in place the copy back."""
    gemm: Node
    """One of ``GEMMS``; of a norm alone the tensor to be summed."""
    operands: Mapping[str, Node]
    """Operands by the operator's names. A is this rank's shard of what is gathered; before a sum the GEMM's own."""
    dim: int
    """The dimension that is gathered or scattered, of ``whole``."""
    whole: Node
    """The gathered tensor, or the one to be summed, in all its dimensions."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The operator's, where they differ from the problem's defaults."""
    returns_a: bool = False
    """The operator also gives back the gathered tensor, for others that use it."""
    added: Node | None = None
    """The sum's sum with a residual."""
    gate: Gate | None = None
    norm: Norm | None = None
    """With its quantisation only where the operator gives that back."""
    moved: Moved | None = None
    """The quantisation of what is gathered, which makes A and its scales of this rank's shard."""
    beside: str = ""
    """The reason why what follows is not the operator's part, where it nearly is."""

    @property
    def workload(self) -> str:
        if self.norm is not None:
            return "gemm_all_reduce_norm" if "b" in self.operands else "all_reduce_norm"
        return WORKLOADS[self.collective.target]

    @property
    def a(self) -> Node:
        """The node that the ranks share, or sum up."""
        return self.operands["a" if "a" in self.operands else "x"]

    @property
    def extra(self) -> str:
        """The operator's larger part, for people: SwiGLU and the like, a residual, or an operator with a norm; else
        empty.
        """
        if self.gate is not None:
            return str(self.gate.epilogue)
        if self.added is not None:
            return "with its residual"
        return self.workload.replace("_", "-") + "-quantised" * self.quantises if self.norm is not None else ""

    @property
    def quantises(self) -> bool:
        """The operator gives its norm back in fp8."""
        return self.norm is not None and bool(self.norm.quantised)

    @property
    def group(self) -> Any:
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
        if node.op == "call_function" and node.target in finders and not node._erased:
            try:
                if not _carries_scales(node):
                    yield node, finders[node.target](node)
            except NoMatch as error:
                yield node, [str(error)]


def _carries_scales(collective: Node) -> bool:
    """True for a gather of scales, which goes with that of its A."""
    if collective.target is not GATHER:
        return False
    reached = [(collective, user) for user in collective.users]
    for _, node in reached:
        reached += [(node, user) for user in node.users] if node.target in {WAIT, *RESHAPES, *TURNS} else []
    return any(is_scale(source, node) for source, node in reached)


def _gathered(collective: Node) -> list[Option]:
    """An operator for each GEMM; or one for the first GEMM, which gives back what is gathered for all else."""
    shard, ranks, wait = collective.args[0], collective.args[1], _wait(collective)
    assert isinstance(shard, Node)
    whole, dim = _rejoined(wait, shard, ranks)
    users = sorted(_users_behind_reshapes(whole), key=lambda each: each[0])
    quantised = [] if any(each.target in GEMMS for each, _ in users) else quantised_behind(whole)
    moved = before_gather(quantised, whole, shard) if quantised else None
    if moved is not None:
        users = [(each.gemm, each.a) for each in quantised]
    of_either_side = [each for each in users if each[0].target in GEMMS]
    gemms = [(gemm, taken) for gemm, taken in of_either_side if _multiplies(gemm, taken)]
    if not of_either_side:
        used = ", ".join(sorted({named(each) for each, _ in users})) or "nothing"
        raise NoMatch(f"no GEMM uses the gathered tensor; it is used by {used}")
    if not gemms:
        raise NoMatch("the gathered tensor is the GEMM's B, not its A")
    each = [_behind_gather(gemm, collective, wait, dim, whole, moved) for gemm, _ in gemms]
    found: list[Option] = [each]
    gated = _apart([_gated(candidate) for candidate in each])
    if any(candidate.gate for candidate in gated):
        found.append(gated)
    elif gated != each:
        found = [gated]  # with the reason beside it
    if len(users) > len(gemms):
        others = ", ".join(sorted({named(user) for user, taken in users if (user, taken) not in gemms}))
        found = [f"the gathered tensor is also used by {others}, so it has to be gathered anyway"]
    if len(users) > 1 and users[0] == gemms[0] and "scale_a" not in each[0].operands:
        found.append([dataclasses.replace(each[0], returns_a=True)])
    return found


def _multiplies(gemm: Node, taken: Node) -> bool:
    """True if a GEMM takes a tensor as its A alone."""
    found = gemm_of(gemm)
    return found.a is taken and found.b is not taken


def _behind_gather(
    gemm: Node, collective: Node, wait: Node, dim: int, whole: Node, moved: Moved | None
) -> Candidate:  # fmt: skip
    found = gemm_of(gemm)
    if found.bias is not None and len(shape_of(found.bias)) != 1:
        raise NoMatch(f"the GEMM adds a tensor of shape {list(shape_of(found.bias))}, which is not a bias")
    shard = collective.args[0]
    assert isinstance(shard, Node)
    operands = {"a": bytes_of(shard), **found.operands}
    if moved is not None and found.scale_a is not None:
        operands |= {"a": moved.made[found.a], "scale_a": moved.made[found.scale_a]}
    elif found.scale_a is not None and dim != len(shape_of(whole)) - 1:
        operands["scale_a"] = scale_before_gather(found.scale_a, collective)
    if found.scale_a is not None and _is_one(operands["scale_a"]) and not _is_one(found.scale_a):
        raise NoMatch("the scale of a rank's only row would be taken for that of all rows")
    return Candidate(collective, wait, gemm, operands, dim, whole, found.options, moved=moved)


def _is_one(scale: Node) -> bool:
    return column_of(value_of(scale)) == (1,)


def _gated(candidate: Candidate) -> Candidate:
    """Add SwiGLU or GeGLU where it follows; else return it as it is, maybe with a reason."""
    try:
        gate = gate_behind(candidate.gemm)
    except NoMatch as error:
        return dataclasses.replace(candidate, beside=str(error))
    if gate is None:
        return candidate
    options = {**candidate.options, "epilogue": gate.epilogue, "gate_up": gate.gate_up}
    return dataclasses.replace(candidate, gate=gate, options=options)


def _apart(found: list[Candidate]) -> list[Candidate]:
    """Add a reason if the GEMMs of gate and up are two."""
    for gate, up in itertools.permutations(found, 2):
        epilogue = epilogue_of_two(gate.gemm, up.gemm)
        if epilogue is not None:
            beside = f"{epilogue} is not its part: gate and up are two weights, not one [gate, up]"
            return [dataclasses.replace(each, beside=beside) if each in (gate, up) else each for each in found]
    return found


def _summed(collective: Node) -> list[Option]:
    """The GEMM before a sum, with a residual or not; of an all-reduce also the norm behind it, with the GEMM or not."""
    total, how, wait = collective.args[0], collective.args[1], _wait(collective)
    assert isinstance(total, Node)
    if how not in SUMS:
        raise NoMatch(f"the ranks reduce by {how}, operators by {' or '.join(SUMS)}")
    copied = _copied_back(wait, total)
    norm, beside = _norm(copied) if collective.target is REDUCE and how == "sum" else (None, "")
    found: list[Option] = []
    try:
        plain = dataclasses.replace(_before_sum(collective, wait, copied), beside=beside)
        found.append([plain])
        added = None if plain.averages else _added(copied)
        if added is not None:
            operands = {**plain.operands, "residual": added[1]}
            found.append([dataclasses.replace(plain, added=added[0], operands=operands)])
        found += [[_with_norm(plain, each, plain.operands)] for each in _given_back(norm)]
    except NoMatch:
        if norm is None:
            raise
    if norm is not None:
        alone = Candidate(collective, copied, total, {}, 0, total, beside=beside)
        found += [[_with_norm(alone, each, {"x": total})] for each in _given_back(norm)]
    return found


def _before_sum(collective: Node, wait: Node, copied: Node) -> Candidate:
    total, how = collective.args[:2]
    assert isinstance(total, Node)
    whole, dim = _unsplit(total, collective.args[2]) if collective.target is SCATTER else (total, 0)
    gemm = _gemm_before_reshapes(whole, {collective, copied} - {wait} if whole is total else None)
    found = gemm_of(gemm)
    if dim == len(shape_of(whole)) - 1:
        raise NoMatch("the ranks share the columns of the sum; the operator shares its rows")
    operands = {"a": found.a, **found.operands}
    if found.bias is not None:
        operands["bias"] = _whole_bias(found.bias, how)
    return Candidate(collective, copied, gemm, operands, dim, whole, found.options)


def _norm(result: Node) -> tuple[Norm | None, str]:
    """The norm behind a sum, and the reason why it or its quantisation is none of an operator."""
    try:
        found = norm_behind(result)
        return found, found.beside if found is not None else ""
    except NoMatch as error:
        return None, str(error)


def _given_back(norm: Norm | None) -> Iterator[Norm]:
    """A norm as operators give it back: in the sum's type, and as fp8."""
    if norm is not None and value_of(norm.normed).dtype == value_of(norm.sum).dtype:
        yield dataclasses.replace(norm, quantised=())
    if norm is not None and norm.quantised:
        yield norm


def _with_norm(candidate: Candidate, norm: Norm, operands: Mapping[str, Node]) -> Candidate:
    given = {**operands, "residual": norm.residual, "weight": norm.weight}
    options = {**candidate.options, "eps": norm.eps}
    if norm.quantised:
        options["quantised"] = norm.scales
    return dataclasses.replace(candidate, norm=norm, operands=given, options=options)


def _copied_back(wait: Node, total: Node) -> Node:
    """The result of a collective in place: functional graphs copy it to what was summed, and go on with that."""
    (user, *others) = list(wait.users) or [wait]
    return user if not others and user.target is ATEN.copy.default and user.args[:2] == (total, wait) else wait


def _added(result: Node) -> tuple[Node, Node] | None:
    """The addition of a tensor of the same shape and type to a result that nothing else uses, and that tensor."""
    summand = behind_reshapes(result)
    (added, *others) = list(summand.users) or [summand]
    if others or added.target is not ATEN.add.Tensor or added.kwargs:
        return None
    other = next((each for each in added.args if each is not summand), None)
    if not isinstance(other, Node) or not alike(other, summand) or not value_of(other).is_contiguous():
        return None
    return added, other


def _whole_bias(bias: Node, how: Any) -> Node:
    """The bias of which every rank adds its share before the sum, as DTensor does: a parameter by the ranks."""
    divided = bias.target is ATEN.div.Tensor and isinstance(bias.args[0], Node) and bias.args[0].op == "placeholder"
    if how != "sum" or not divided or not isinstance(bias.args[1], int) or len(shape_of(bias)) != 1:
        raise NoMatch("each rank adds its own bias before the sum; add it after the sum, or let DTensor divide it")
    whole = bias.args[0]
    assert isinstance(whole, Node)
    return whole


def shares_of(bias: Node) -> int:
    """The divisor of a bias before a sum."""
    divisor: Any = bias.args[1]
    return int(divisor)


def _wait(collective: Node) -> Node:
    users = list(collective.users)
    if len(users) != 1 or users[0].target is not WAIT:
        raise NoMatch(f"its result is used by {', '.join(map(named, users)) or 'nothing'} before it is waited for")
    return users[0]


def _rejoined(wait: Node, shard: Node, ranks: Any) -> tuple[Node, int]:
    """The whole after a gather and its dimension: parts of another dimension than the first are split and joined."""
    (split, *others) = list(wait.users) or [wait]
    if others or split.target not in SPLITS:
        return wait, 0
    part = list(shape_of(shard))
    joins = {join for each in split.users for join in each.users}
    join = joins.pop() if len(joins) == 1 else None
    if join is None or join.target is not ATEN.cat.default or not _parts_of(split, join.args[0], part, ranks):
        raise NoMatch("the gathered tensor is split, and not concatenated along another dimension")
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
        raise NoMatch("the summed tensor is concatenated from several")
    dim, whole = split.args[2] if len(split.args) > 2 else 0, split.args[0]
    assert isinstance(dim, int) and isinstance(whole, Node)
    if (total.args[1] if len(total.args) > 1 else 0) != 0 or len(whole.users) != 1:
        raise NoMatch("the summed tensor is split, and not concatenated along its first dimension alone")
    if not _parts_of(split, total.args[0], list(shape_of(first)), ranks):
        raise NoMatch("the summed tensor is not split into a part for each rank")
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
        if keeps_columns(user, node) or bytes_of(user) is node:
            yield from _users_behind_reshapes(user)
        else:
            yield user, node


def _gemm_before_reshapes(node: Node, users: set[Node] | None) -> Node:
    """The GEMM whose rows a tensor has, in their order, and that nothing else needs."""
    while True:
        if users is not None and set(node.users) != users:
            others = ", ".join(named(each) for each in node.users if each not in users)
            raise NoMatch(f"the summed tensor is also used by {others}")
        if node.target in GEMMS:
            return node
        source: Any = node.args[0] if node.args else None
        if not keeps_columns(node, source):
            raise NoMatch(f"the summed tensor comes from {named(node)}, not from a GEMM")
        node, users = source, {node}
