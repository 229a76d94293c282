"""The decision: replaced is what has a tuned config faster than the library's way, by one table on all ranks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch.utils._python_dispatch import _disable_current_modes

from autotune.compiled.gemms import column_of, gemm_of
from autotune.compiled.graphs import NoMatch, computed_from, shape_of, value_of
from autotune.compiled.patterns import Candidate, shares_of
from autotune.db import Entry
from autotune.errors import AutotuneError, InputError
from autotune.machine import Machine
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.results.regimes import called_alike
from autotune.runtime.context import Context, check_context
from autotune.runtime.entries import Entries
from autotune.runtime.groups import process_group, ranks_of
from autotune.runtime.lookup import choose, forget_lookups
from autotune.task import Task
from autotune.workloads import provenance_of, workload
from autotune.workloads.built_in import all_reduce_norm, gemm_all_reduce_norm
from autotune.workloads.built_in.all_gather_gemm import RETURNING_A
from autotune.workloads.launched import LaunchedWorkload

OPERATORS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "all_reduce_norm", "gemm_all_reduce_norm")

SHARED_ROWS = ("all_gather_gemm", "gemm_reduce_scatter")
"""Operators whose m the ranks share out."""

QUANTISING = {each.name: each for each in (all_reduce_norm.QUANTISING_NORM, gemm_all_reduce_norm.QUANTISING_NORM)}

MAY_DIFFER = "the tensor added to the sum may differ from rank to rank: replicated=True says that it does not"

LIBRARY = "bsp"
GATHERED = "all_gather"
"""The part of a problem's limits that is its collective alone."""


@dataclass(frozen=True)
class Verdict:
    """A candidate's problem, and whether the operator replaces it."""

    problem: Problem
    options: tuple[Any, ...]
    """The operator's, in its order."""
    entry: Entry | None
    """The tuned entry that a look-up serves for it."""
    reason: str
    compares: bool = False
    """The operator's first call demands that all ranks add the same."""
    replaced: bool = False
    gain: float = 0.0
    """Microseconds that replacing it, and those that are replaced with it, saves."""


class Tuned:
    """The tuned entries of a database, and what operators gain by them."""

    def __init__(self, entries: dict[str, Entries], machine: Machine, regime: Regime, ranks: int) -> None:
        self._entries, self._machine, self._regime, self.ranks = entries, machine, regime, ranks

    def fields(self, name: str) -> list[dict[str, Any]]:
        """The problems with entries, of an operator, for as many ranks."""
        found = [each.key.fields for each in self._entries[name]]
        return [each for each in found if each["world_size"] == self.ranks]

    def gain(self, problem: Problem) -> tuple[float, str]:
        """Microseconds that the operator saves over the library, 0 where it does not, and the reason. Raises NoMatch
        where it cannot run.
        """
        entry, told = self._served(_workload(problem.workload), problem)
        if entry is None:
            return 0.0, told
        gain, reason = _gain([entry])
        return max(gain, 0.0), "; ".join(each for each in (reason, told) if each)

    def _served(self, found: LaunchedWorkload, problem: Problem) -> tuple[Entry | None, str]:
        try:
            chosen = choose(found, Task(problem, self._machine), self._entries[found.name], self._regime)
        except AutotuneError as error:
            raise NoMatch(str(error)) from error
        return chosen.entry, chosen.reason


class Table(Tuned):
    """The tuned entries of a context's database as its first rank sees them."""

    def __init__(self, context: Context, *, replicated: bool | None = None) -> None:
        """Read the entries on rank 0, whatever it has read before, and give them to all: collective. ``replicated``:
        see ``fusing``.
        """
        check_context(context)
        if context.invariant:
            raise InputError(
                "the pass leaves what our operators do not win to the library, whose bits depend on the batch: call "
                "the operators of an invariant context by name, or compile with another context"
            )
        forget_lookups()  # also for what the operators in the graph will look up
        self.context, self.replicated = context, replicated
        entries = {name: context.tuned(name) for name in OPERATORS}
        super().__init__(entries, context.machine, context.regime, context.heap.world_size)

    @property
    def digest(self) -> str:
        told = [f"{each.key} {each.provenance} {each.winner}" for name in OPERATORS for each in self._entries[name]]
        here = [str(provenance_of(_workload(name))) for name in OPERATORS]
        asking = [str(self.context.machine), self.context.regime, self.replicated, here]
        return hashlib.sha256(json.dumps([*asking, sorted(told)]).encode()).hexdigest()

    def verdicts(self, found: Sequence[Candidate]) -> list[Verdict]:
        """Decide for one collective's GEMMs: all are replaced, or none. Raises NoMatch if the operator cannot.

        A symbolic row count is decided by the compiler's example value, with guards for the sizes whose look-up serves
        the same entry; other sizes compile anew.
        """
        self._check_group(found[0])
        asked = [self._asked(each) for each in found]
        if any(each.entry is None for each in asked):
            if any(map(self._may_differ, found)):
                raise NoMatch(MAY_DIFFER)
            left = "another GEMM behind the same gather is not tuned"
            return [each if each.entry is None else dataclasses.replace(each, reason=left) for each in asked]
        gain, reason = _gain([each.entry for each in asked if each.entry is not None])
        if any(map(self._may_differ, found)):
            raise NoMatch(f"{MAY_DIFFER}, with which it would be: {reason}")
        looked_up = dict.fromkeys(each.reason for each in asked if each.reason)  # empty for what is exact
        reason = "; ".join([reason, *looked_up])
        replaced = gain > 0
        symbol = shape_of(found[0].gemm)[0]
        if replaced and not isinstance(symbol, int):
            spans = [self._span(each) for each in asked]
            first, last = max(first for first, _ in spans), min(last for _, last in spans)
            _guard(symbol, first, last)
            reason += f", for m from {first} to {last}"
        return [dataclasses.replace(each, replaced=replaced, reason=reason, gain=gain) for each in asked]

    def _asked(self, candidate: Candidate) -> Verdict:
        """A candidate's problem and the entry that a look-up serves for it; the decision comes later."""
        found = RETURNING_A if candidate.returns_a else _workload(candidate.workload)
        found = QUANTISING[found.name] if candidate.quantises else found
        options = _options(candidate, found)
        problem = _problem(candidate, found, options, self.ranks)
        entry, reason = self._served(found, problem)
        if entry is None and self.context.tunes_first_calls and not self._may_differ(candidate):
            entry, reason = self._tuned(found, problem)
        return Verdict(problem, options, entry, reason, compares=_adds_once(candidate) and self.replicated is None)

    def _may_differ(self, candidate: Candidate) -> bool:
        """True if a rank may add another tensor to the sum than the owner of a tile, who adds it for all: unless it is
        said to be the same, or the parts of the sum are computed from it, as in every layer with tensor parallelism.
        """
        if not _adds_once(candidate) or self.replicated:
            return False
        return self.replicated is False or not computed_from(candidate.whole, candidate.operands["residual"])

    def _tuned(self, found: LaunchedWorkload, problem: Problem) -> tuple[Entry | None, str]:
        """Let the ranks, all of which compile the same graph, tune a problem; then the same as ``_served``."""
        with _outside_of_compilation():
            if self.context.choose(problem, workload=found).entry is not None:  # not where the budget is used up
                self._entries[found.name] = self.context.tuned(found.name)
        return self._served(found, problem)

    def _check_group(self, candidate: Candidate) -> None:
        ranks, ours = ranks_of(process_group(candidate.group)), self.context.ranks
        if ranks != ours:
            raise NoMatch(f"the collective is among ranks {list(ranks)}, the context among {list(ours)}")

    def _span(self, verdict: Verdict) -> tuple[int, int]:
        """The smallest and the largest m around the problem's for which an entry of the same study is served: its
        winner, or what stands in for it.
        """
        problem = verdict.problem
        found = _workload(problem.workload)
        step = self.ranks if found.name in SHARED_ROWS else 1
        here = int(problem.as_dict()["m"]) // step

        def serves(count: int) -> bool:
            asked = found.problem_type.from_dict({**problem.as_dict(), "m": count * step})
            entry = self._served(found, asked)[0]
            return entry is not None and verdict.entry is not None and entry.study_id == verdict.entry.study_id

        beyond = here * 4 + 1  # a look-up's neighbours are within a factor of two
        return border(serves, here, 0) * step, border(serves, here, beyond) * step


def _adds_once(candidate: Candidate) -> bool:
    """True if one rank adds a tensor to an element of the sum that all get."""
    return "residual" in candidate.operands and candidate.workload not in SHARED_ROWS


@contextmanager
def _outside_of_compilation() -> Iterator[None]:
    """Calls as before the compiler began: no fake tensors, nothing put into graphs, and not its dispatcher in Python,
    which holds the interpreter's lock while gloo's threads wait for it.
    """
    before, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, False
    try:
        with no_python_dispatcher(), _disable_current_modes():
            yield
    finally:
        torch.compiler._is_compiling_flag = before


def _gain(entries: Sequence[Entry]) -> tuple[float, str]:
    """Microseconds that the winners save together over the library, which gathers once for all; and the reason."""
    regime = Regime(entries[0].key.regime)
    modes = " and ".join(dict.fromkeys(str(each.winner.config["mode"]) for each in entries))
    if modes == LIBRARY:
        return 0.0, "the library's way is the fastest"
    ours = sum(each.winner.latency.of(regime) for each in entries)
    alike = [called_alike(each.winner.baselines, regime).values() for each in entries]
    if not all(alike):
        return 0.0, "the library's way failed when this was tuned, so there is no time to compare with"
    library = sum(min(time.of(regime) for time in times) for times in alike)
    shared, more = "", len(entries) - 1
    if more:
        gathers = [each.winner.limits[GATHERED].median for each in entries if GATHERED in each.winner.limits]
        library -= more * max(gathers, default=library)
        shared = f" for {len(entries)} GEMMs behind one gather"
    sizes = ", ".join(dict.fromkeys(str(each.key.fields["m"]) for each in entries))
    return library - ours, f"mode {modes}, {library / ours:.2f} times as fast as the library at m={sizes}{shared}"


def _workload(name: str) -> LaunchedWorkload:
    found = workload(name)
    assert isinstance(found, LaunchedWorkload)
    return found


def border(serves: Any, here: int, beyond: int) -> int:
    """The last number from ``here`` towards ``beyond`` that is served; ``beyond`` itself is not."""
    while abs(beyond - here) > 1:
        middle = (here + beyond) // 2
        here, beyond = (middle, beyond) if serves(middle) else (here, middle)
    return here


def hint(size: Any) -> int:
    """A size, of a symbol the compiler's example. Raises NoMatch where it has none."""
    if isinstance(size, int):
        return size
    if not size.node.has_hint():
        raise NoMatch(f"size {size} depends on the data")
    return int(size.node.hint)


def _guard(symbol: Any, first: int, last: int) -> None:
    """Let the compiler compile anew for sizes beyond these. Raises NoMatch where it takes no guards any more."""
    if symbol.node.shape_env.frozen:
        raise NoMatch(f"m is symbolic ({symbol}), and the compiler takes no guards any more, as in a backward")
    if not (bool(symbol >= first) and bool(symbol <= last)):
        raise NoMatch(f"m is symbolic ({symbol}), and not from {first} to {last}")


def _options(candidate: Candidate, found: LaunchedWorkload) -> tuple[Any, ...]:
    """The operator's options: those of a plain call, but for the layout of what is gathered along K."""
    defaults = {field.name: field.default for field in dataclasses.fields(found.problem_type)}
    if candidate.workload == "all_gather_gemm" and candidate.dim == len(shape_of(candidate.whole)) - 1:
        defaults["layout"] = "k"
    return tuple(candidate.options.get(name, defaults[name]) for name in found.options)


MATRICES = ("a", "x", "residual")
"""Operands of whatever dimensions, which the operator takes row by row."""


def _problem(candidate: Candidate, found: LaunchedWorkload, options: Sequence[Any], ranks: int) -> Problem:
    """The problem that the operator's call will have, for example sizes."""
    if "bias" in candidate.operands and candidate.workload != "all_gather_gemm":
        addend = gemm_of(candidate.gemm).bias
        assert addend is not None
        if shares_of(addend) != ranks:
            raise NoMatch(f"each rank adds 1 / {shares_of(addend)} of a bias before the sum over {ranks} ranks")
    operands = {
        name: _matrix(node) if name in MATRICES else _scale(node) if name.startswith("scale") else _stand_in(node)
        for name, node in candidate.operands.items()
    }
    try:
        return found.problem_of(ranks, [operands.get(name) for name in found.kernels.operands], options)
    except AutotuneError as error:
        raise NoMatch(str(error)) from error


def _matrix(node: torch.fx.Node) -> torch.Tensor:
    """All dimensions but the last as one, for example sizes."""
    *rows, columns = map(hint, shape_of(node))
    return torch.empty((math.prod(rows), columns), dtype=value_of(node).dtype, device="meta")


def _scale(node: torch.fx.Node) -> torch.Tensor:
    value = value_of(node)
    shape = [hint(each) for each in column_of(value)]
    strided = value.dim() == 2 and not value.is_contiguous() and len(shape) == 2
    made = torch.empty(shape[::-1] if strided else shape, dtype=value.dtype, device="meta")
    return made.t() if strided else made


def _stand_in(node: torch.fx.Node) -> torch.Tensor:
    value = value_of(node)
    if not all(isinstance(each, int) for each in (*value.shape, *value.stride())):
        raise NoMatch(f"the sizes of B or the bias are symbols: {list(value.shape)}")
    if value.dim() == 2 and not (value.is_contiguous() or value.t().is_contiguous()):
        raise NoMatch(f"B has strides {value.stride()}, so the operator would copy it in each call")
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
