"""The pass that ``torch.compile`` runs over a graph, and its report."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule

from autotune.compiled.decisions import Table, Verdict
from autotune.compiled.patterns import Candidate, NoMatch, candidates
from autotune.compiled.report import Explanation, Line
from autotune.compiled.rewriting import check_form, rewrite
from autotune.runtime.context import Context
from autotune.runtime.listeners import tell

LOG = logging.getLogger("autotune")


def fusing(context: Context, *, inductor: dict[str, Any] | None = None) -> dict[str, Any]:
    """Options for ``torch.compile``: collectives and their GEMMs become operators where tuned ones are faster.

        model = torch.compile(model, options=autotune.fusing(context))

    Collective: all ranks decide by what the first one finds in the database now. A later winner counts from the next
    ``fusing`` on. ``inductor`` are further options of its own. Raises what ``lookup`` raises.
    """
    return {**(inductor or {}), "post_grad_custom_pre_pass": Fusing(Table(context))}


def explain(context: Context, model: Callable[..., Any], *arguments: Any, **named: Any) -> Explanation:
    """A line for each collective of a model: the operator that ``fusing`` would put there, or the reason why it stays.

    Collective. Calls the model once with these arguments, compiled without any change.
    """
    table, lines = Table(context), list[Line]()

    def look(graph: Graph) -> None:
        lines.extend(line for line, _, _ in _found(graph, table))

    torch.compile(model, backend=backend(look))(*arguments, **named)
    return Explanation(tuple(lines))


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
    """Replaces what a table says is faster. It asks no other rank: a compiler may find a graph in its cache."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.lines: dict[str, Line] = {}
        """The lines told so far, by their text: each is told once."""

    def __call__(self, graph: Graph) -> None:
        for line, candidate, verdict in _found(graph, self.table):
            if str(line) not in self.lines:
                self.lines[str(line)] = line
                LOG.info("%s", line)
            if candidate is None or verdict is None:
                continue
            if verdict.replaced:
                rewrite(graph, candidate, verdict, self.table.context)
            else:
                tell(verdict.problem)

    def __deepcopy__(self, memo: Any) -> Fusing:
        """Itself: inductor copies its options, and a context cannot be copied."""
        return self

    def uuid(self) -> str:
        """For the compiler's cache: this code, the context in the graph, and what decides."""
        return f"{_source()} {self.table.context.handle} {self.table.context.ranks} {self.table.digest}"


def _found(graph: Graph, table: Table) -> Iterator[tuple[Line, Candidate | None, Verdict | None]]:
    """Everything in a graph, one after another: the caller may replace each before it asks for the next."""
    for collective, found in candidates(graph):
        name = str(getattr(collective.target, "__name__", collective.target)).removesuffix(".default")
        if isinstance(found, str):
            yield Line(collective.name, name, None, False, found), None, None
            continue
        try:
            for each in found:
                check_form(each)
            verdicts = table.verdicts(found)
        except NoMatch as error:
            yield Line(collective.name, found[0].workload, None, False, str(error)), None, None
            continue
        for each, verdict in zip(found, verdicts, strict=True):
            line = Line(collective.name, each.workload, verdict.problem, verdict.replaced, verdict.reason)
            yield line, each, verdict


@functools.cache
def _source() -> str:
    """A hash of the pass's own sources: a graph that another version of it rewrote is not taken from a cache."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
