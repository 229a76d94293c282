"""A model's forward before and after tuning, as rows for people and as values for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.device_rates import Rates, rates_of
from autotune.machine import Machine
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.results.figures import dashed, instead_text, microseconds, plain
from autotune.results.result import Result
from autotune.task import Task
from autotune.text import Table, shortened

if TYPE_CHECKING:
    from autotune.db import Entry
    from autotune.models.forward import Call, Forward

HEADER = ("layer", "calls", "library", "tuned", "vs library", "mode", "share")
TUNED = ("operator", "sizes", "takes", "vs library", "mode")

SIZES = (
    "m", "n", "k", "batch", "q_heads", "kv_heads", "head_dim", "kv_len", "tokens", "hidden",
    "experts", "top_k", "width",
)  # fmt: skip
"""Fields that are always shown; others where they tell problems of one workload apart, as in a list."""


@dataclass
class ModelResult:
    """Before is the library's fastest way, measured with the winner; after is the winner."""

    forwards: Sequence[Forward]
    machine: Machine
    regime: Regime
    entries: dict[Problem, Entry] = field(default_factory=dict)
    failed: list[Problem] = field(default_factory=list)
    left_out: list[Problem] = field(default_factory=list)
    """Problems for whose search the budget was too short."""

    def times(self, problem: Problem) -> tuple[float, float] | None:
        """Microseconds of a call before and after; None where it is not tuned."""
        from autotune.models.promise import before

        entry = self.entries.get(problem)
        if entry is None:
            return None
        after = entry.winner.latency.of(self.regime)
        library = before(entry.winner, self.regime)
        return (after if library is None else library), after

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Each forward in a sentence, and its layers."""
        for forward in self.forwards:
            yield self._line(forward), Table(HEADER, [self._cells(forward, call) for call in forward.calls])

    def tuned_cells(self, problem: Problem) -> list[str]:
        entry = self.entries.get(problem)
        if entry is None:
            return [dashed(problem.workload), self._sizes(problem), "none", "", ""]
        of = Result.of(entry)
        return [dashed(problem.workload), self._sizes(problem), microseconds(of.microseconds), of.speedup_text, of.mode]

    def lines(self) -> list[str]:
        """What is left out and why."""
        found = []
        if self.left_out:
            named = ", ".join(f"{dashed(each.workload)} {self._sizes(each)}" for each in self.left_out[:3])
            more = f" and {len(self.left_out) - 3} more" if len(self.left_out) > 3 else ""
            why = "the budget went to those that gain more"
            told = "not searched, only the library, the default and the configs of neighbouring sizes measured"
            found.append(f"{told}: {named}{more}; {why}. A longer --budget searches them, or the same command again")
        if self.rates is None:
            found.append("layers without communication are left out: the rates of this device are not known")
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "forwards": [self._forward_dict(forward) for forward in self.forwards],
            "not_searched": [{"workload": each.workload, "problem": each.as_dict()} for each in self.left_out],
            "failed": [{"workload": each.workload, "problem": each.as_dict()} for each in self.failed],
        }

    @property
    def rates(self) -> Rates | None:
        """Rates of this device, for operations that do not communicate."""
        return rates_of(self.machine)

    def predicted(self, forward: Forward) -> tuple[float, float, float]:
        """Microseconds of a forward before and after, and of what communicates nothing, which is part of both.

        A call that is not tuned counts as the roofline has it, before and after.
        """
        from autotune.models.gains import rest

        alone = rest(forward, self.rates) if self.rates is not None else 0.0
        before = after = alone
        for call in forward.calls:
            once = self._once(call)
            before, after = before + call.count * once[0], after + call.count * once[1]
        return before, after, alone

    def _once(self, call: Call) -> tuple[float, float]:
        from autotune.models.gains import estimate

        times = self.times(call.problem)
        if times is not None:
            return times
        guessed = estimate(Task(call.problem, self.machine)).before if self.rates is not None else 0.0
        return guessed, guessed

    def _cells(self, forward: Forward, call: Call) -> list[str]:
        operator = f"{dashed(call.problem.workload)} {self._sizes(call.problem)}"
        head = [f"{call.layer}: {operator}", str(call.count)]
        times, entry = self.times(call.problem), self.entries.get(call.problem)
        if times is None or entry is None:
            return [*head, "not tuned", "", "", "", self._share(forward, call)]
        before, after = times
        figures = [microseconds(before), microseconds(after), self._ratio(before, after)]
        return [*head, *figures, str(entry.winner.config["mode"]), self._share(forward, call)]

    def _share(self, forward: Forward, call: Call) -> str:
        whole = self.predicted(forward)[0]
        return f"{call.count * self._once(call)[0] / whole:.0%}" if whole else ""

    def _line(self, forward: Forward) -> str:
        before, after, alone = self.predicted(forward)
        if not before:
            return f"{forward.title}: nothing measured"
        rest = f"; {microseconds(alone)} of it, by roofline, do not communicate" if alone else ""
        ratio = "" if self.machine.is_interpreter else f"{before / after:.2f} times as fast as the library, "
        return f"{forward.title}: predicted {ratio}{instead_text(after, before)}{rest}"

    def _ratio(self, before: float, after: float) -> str:
        """Empty under the interpreter."""
        return "" if self.machine.is_interpreter else f"{before / after:.2f}x"

    def _forward_dict(self, forward: Forward) -> dict[str, Any]:
        before, after, alone = self.predicted(forward)
        return {
            "forward": forward.title,
            "predicted": {"before": before, "after": after, "without_communication": alone},
            "calls": [self._call_dict(call) for call in forward.calls],
        }

    def _sizes(self, problem: Problem) -> str:
        fields = problem.as_dict()
        names = [name for name in SIZES if name in fields]
        names += [name for name in self._varying[problem.workload] if name not in names]
        entry = self.entries.get(problem)
        verified = " verified" if entry is not None and entry.winner.verified else ""
        return " ".join(f"{name}={shortened(plain(getattr(problem, name)))}" for name in names) + verified

    @cached_property
    def _varying(self) -> dict[str, list[str]]:
        """Fields in which a workload's problems differ, by workload."""
        found: dict[str, set[Problem]] = {}
        for forward in self.forwards:
            for call in forward.calls:
                found.setdefault(call.problem.workload, set()).add(call.problem)
        return {
            workload: [
                each.name
                for each in dataclasses.fields(next(iter(problems)))
                if len({getattr(problem, each.name) for problem in problems}) > 1
            ]
            for workload, problems in found.items()
        }

    def _call_dict(self, call: Call) -> dict[str, Any]:
        times, entry = self.times(call.problem), self.entries.get(call.problem)
        return {
            "layer": call.layer,
            "workload": call.problem.workload,
            "problem": call.problem.as_dict(),
            "calls": call.count,
            "before": times and times[0],
            "after": times and times[1],
            "entry": Result.of(entry).to_dict() if entry is not None else None,
        }
