"""The pass that ``torch.compile`` runs over a graph, and its report."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule, Node

from autotune.compiled.decisions import Table, Verdict
from autotune.compiled.graphs import NoMatch
from autotune.compiled.patterns import Candidate, Option, candidates
from autotune.compiled.rewriting import check_form, rewrite
from autotune.problem import Problem
from autotune.results.figures import dashed, problem_text
from autotune.runtime.call import LISTENERS
from autotune.runtime.context import Context, check_context

LOG = logging.getLogger("autotune")

ANY_NUMBER = 1 << 30
"""Limit of graphs per code: beyond its own limit the compiler makes none, and none would be seen."""


def fusing(
    context: Context, *, replicated: bool | None = None, tune: str | None = None, inductor: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Options for ``torch.compile``: collectives and their GEMMs become operators where tuned ones are faster.

        model = torch.compile(model, options=autotune.fusing(context))

    Collective: all ranks decide by what the first one finds in the database now. A later winner counts from the next
    ``fusing`` on. ``replicated`` says that what a graph adds to an all-reduce's result is the same on every rank: then
    the operator adds it. By default it adds that from which the summed parts are computed, as in every layer with
    tensor parallelism, and its first call raises RanksDisagree where that differs, in whatever bit. ``tune``, like 60s:
    while a graph is compiled the ranks tune what it calls, see ``Context.tune_first_calls``; the compiler's cache is
    left alone then. ``inductor`` are further options of its own. Raises what ``lookup`` raises.
    """
    check_context(context)
    if tune is not None:
        context.tune_first_calls(tune)
    return {**(inductor or {}), "post_grad_custom_pre_pass": Fusing(Table(context, replicated=replicated))}


def explain(
    context: Context, model: Callable[..., Any], *arguments: Any, replicated: bool | None = None, **named: Any
) -> Explanation:  # fmt: skip
    """A line for each collective of a model: the operator that ``fusing`` would put there, or the reason why it stays.

    Collective. Calls the model once with these arguments, compiled without any change.
    """
    table, lines = Table(context, replicated=replicated), list[Line]()

    def look(graph: Graph) -> None:
        lines.extend(line for ways in _found(graph, table) for line in ways[0].lines())

    with torch._dynamo.config.patch(recompile_limit=ANY_NUMBER, accumulated_recompile_limit=ANY_NUMBER):
        torch.compile(_anew(model), backend=backend(look))(*arguments, **named)
    return Explanation(tuple(lines))


def _anew(model: Callable[..., Any]) -> Callable[..., Any]:
    """A call with code of its own, by which the compiler counts graphs; of a module as it was before ``compile()``."""
    plain = getattr(model, "_call_impl", model)

    def call(*arguments: Any, **named: Any) -> Any:
        return plain(*arguments, **named)

    call.__code__ = call.__code__.replace()
    return call


def backend(look: Callable[[Graph], None]) -> Callable[..., Any]:
    """A backend that shows each graph to ``look``, which may change it, and runs it without generating code."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    def compiler(module: GraphModule, _: Any) -> Any:
        look(module.graph)
        module.recompile()
        return module

    made: Callable[..., Any] = aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table())
    return made


class Fusing(CustomGraphPass):
    """Replaces what a table says is faster. Unless it tunes, it asks no other rank: a compiler may find a graph in its
    cache.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.lines: dict[str, Line] = {}
        """The lines told so far, by their text: each is told once."""

    def __call__(self, graph: Graph) -> None:
        for first, *others in _found(graph, self.table):
            for line in first.lines():
                if str(line) not in self.lines:
                    self.lines[str(line)] = line
                    LOG.info("%s", line)
            if first.gain:
                for candidate, verdict in zip(first.found, first.verdicts, strict=True):
                    rewrite(graph, candidate, verdict, self.table.context)
            ways = [[verdict.problem for verdict in way.verdicts] for way in (first, *others) if way.verdicts]
            for listener in LISTENERS:
                listener.found(ways, replaced=first.gain > 0)

    def __deepcopy__(self, memo: Any) -> Fusing:
        """Itself: inductor copies its options, and a context cannot be copied."""
        return self

    def uuid(self) -> str | None:
        """Key of the compiler's cache: this code, the context in the graph, and the table's digest. None keeps it out:
        a rank that took a graph from it would not come to tune with the others.
        """
        if self.table.context.tunes_first_calls:
            return None
        return f"{_source()} {self.table.context.handle} {self.table.context.ranks} {self.table.digest}"


@dataclass(frozen=True)
class Found:
    """A way to replace a collective: all of its GEMMs, or the reason why there is none."""

    collective: Node
    found: list[Candidate]
    verdicts: list[Verdict]
    reason: str = ""
    beside: str = ""
    """Larger ways that are not taken, and why."""

    @property
    def gain(self) -> float:
        """Zero if not replaced."""
        return self.verdicts[0].gain if self.verdicts and self.verdicts[0].replaced else 0.0

    def lines(self) -> Iterator[Line]:
        if not self.verdicts:
            name = str(getattr(self.collective.target, "__name__", self.collective.target)).removesuffix(".default")
            operator = self.found[0].workload if self.found else name
            yield Line(self.collective.name, operator, None, False, self.reason + self.beside)
        for each, verdict in zip(self.found, self.verdicts, strict=True) if self.verdicts else ():
            moved = "A is quantised before it is gathered" if each.moved is not None else ""
            told = filter(None, (verdict.reason, moved, each.beside))
            reason = "; ".join(told) + self.beside
            yield Line(self.collective.name, each.workload, verdict.problem, verdict.replaced, reason)


def _found(graph: Graph, table: Table) -> Iterator[list[Found]]:
    """The ways for each collective, the one to take first; the caller may replace each before it asks for the next."""
    for collective, options in candidates(graph):
        ways = [_judged(collective, option, table) for option in options]
        first, *others = sorted(ways, key=lambda way: -way.gain)
        yield [dataclasses.replace(first, beside="".join(_beside(first, way) for way in others)), *others]


def _beside(taken: Found, other: Found) -> str:
    """The reason against a way that would take more of the graph than the one taken."""
    extra = ", ".join(dict.fromkeys(each.extra for each in other.found if each.extra))
    if other.gain or _reach(other) <= _reach(taken):
        return ""
    return f"; {extra}: {other.verdicts[0].reason if other.verdicts else other.reason}"


def _reach(way: Found) -> int:
    """1 for a way that takes more than collective and GEMM, and 1 for a quantisation."""
    return max((bool(each.extra) + each.quantises for each in way.found), default=0)


def _judged(collective: Node, option: Option, table: Table) -> Found:
    if isinstance(option, str):
        return Found(collective, [], [], option)
    try:
        for each in option:
            check_form(each)
        return Found(collective, option, table.verdicts(option))
    except NoMatch as error:
        return Found(collective, option, [], str(error))


@functools.cache
def _source() -> str:
    """A hash of the pass's own sources: a graph that another version of it rewrote is not taken from a cache."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@dataclass(frozen=True)
class Line:
    collective: str
    operator: str
    """The operator's name, or that of the collective where no operator fits."""
    problem: Problem | None
    replaced: bool
    reason: str

    def __str__(self) -> str:
        what = f"{dashed(self.operator)} {problem_text(self.problem.as_dict())}" if self.problem else self.operator
        return f"{self.collective}: {what}: {'replaced' if self.replaced else 'left'}: {self.reason}"


@dataclass(frozen=True)
class Explanation:
    """Every collective that could be part of an operator, for each of its GEMMs."""

    lines: tuple[Line, ...]

    def __str__(self) -> str:
        replaced = sum(line.replaced for line in self.lines)
        head = f"{len(self.lines)} found, {replaced} replaced"
        return "\n".join([head, *(f"  {line}" for line in self.lines)])
