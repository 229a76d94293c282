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
from autotune.text import Table, shortened

if TYPE_CHECKING:
    from autotune.db import Entry
    from autotune.models.forward import Call, Forward, Way
    from autotune.models.promise import Measured

HEADER = ("layer", "library → tuned", "vs library", "host", "mode", "share")
TUNED = ("operator", "sizes", "takes", "vs library", "mode")

SIZES = (
    "m", "n", "k", "batch", "q_heads", "kv_heads", "head_dim", "kv_len", "tokens", "hidden",
    "experts", "top_k", "width",
)  # fmt: skip
"""Fields that are always shown; others where they tell problems of one workload apart, as in a list."""


CALLS_ALONE = "; these calls alone, not what else a forward does"
"""Said of a list: its model is not known."""

TITLES = {Regime.GRAPH: "in a CUDA graph", Regime.PIPELINED: "eager", Regime.ISOLATED: "each call waited for"}


@dataclass(frozen=True)
class Predicted:
    """Microseconds of a forward."""

    before: float
    after: float
    alone: float
    """Part of both that communicates nothing."""
    taken: frozenset[Way]
    """The ways of alternatives that are in it."""

    def text(self, ratios: bool) -> str:
        faster = f"{self.before / self.after:.2f} times as fast as the library, " if ratios else ""
        return f"{faster}{instead_text(self.after, self.before)}"

    def takes(self, call: Call) -> bool:
        return any(call in way for way in self.taken)

    def as_dict(self) -> dict[str, float]:
        return {"before": self.before, "after": self.after, "without_communication": self.alone}


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
    ruled_out: list[Problem] = field(default_factory=list)
    """Alternatives to what saves more in their places."""

    def measured(self, run: Regime) -> Measured:
        """The entries, for forwards that are run in this way."""
        from autotune.models.promise import Measured

        return Measured(self.entries.get, self.machine, self.regime, run)

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Each forward in a sentence, and its layers."""
        for forward in self.forwards:
            whole = self.predicted(forward, Regime.GRAPH)
            yield self._line(forward), Table(HEADER, [self._cells(call, whole) for call in forward.calls])

    def tuned_cells(self, problem: Problem) -> list[str]:
        entry = self.entries.get(problem)
        if entry is None:
            return [dashed(problem.workload), self.sizes(problem), "none", "", ""]
        of = Result.of(entry)
        return [dashed(problem.workload), self.sizes(problem), microseconds(of.microseconds), of.speedup_text, of.mode]

    def lines(self) -> list[str]:
        """Lines on problems that were left out, with the reason."""
        found = []
        if self.left_out:
            told = "not searched, only the library, the default and the configs of neighbouring sizes measured"
            why = "the budget went to those that gain more. A longer --budget searches them, or the same command again"
            found.append(f"{told}: {self._named(self.left_out)}; {why}")
        if unsearched := [each for each in self.ruled_out if self._is_verified(each)]:
            told = "not searched, since another operator for the same place saves more"
            found.append(f"{told}: {self._named(unsearched)}")
        if self.rates is None:
            found.append("layers without communication are left out: the rates of this device are not known")
        return found

    def _named(self, problems: Sequence[Problem]) -> str:
        named = ", ".join(f"{dashed(each.workload)} {self.sizes(each)}" for each in problems[:3])
        return named + (f" and {len(problems) - 3} more" if len(problems) > 3 else "")

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

    def predicted(self, forward: Forward, run: Regime) -> Predicted:
        """A forward that is run in this way. What is not tuned counts as rooflines have it, before and after."""
        from autotune.models.gains import estimated, rest
        from autotune.models.promise import Sums

        found = self.measured(run).totals(forward.calls)
        if self.rates is None:
            alone = untuned = 0.0
        else:
            alone = rest(forward, self.rates)
            untuned = sum(estimated(place, self.machine).before for place in found.untuned)
        both = Sums(alone + untuned, isolated=alone + untuned)
        return Predicted((found.before + both).took(run), (found.after + both).took(run), alone, found.taken)

    def named(self, call: Call) -> str:
        """``down: 32 × gemm-all-reduce m=16 n=8192 k=28672``."""
        return f"{call.layer}: {call.count} × {dashed(call.problem.workload)} {self.sizes(call.problem)}"

    def _cells(self, call: Call, whole: Predicted) -> list[str]:
        """``whole``: the forward by the device's times, of which a call has a share."""
        times, entry = self.measured(self.regime).times(call), self.entries.get(call.problem)
        if times is None or entry is None:
            return [self.named(call), "not tuned", "", "", "", ""]
        before, after = times
        share = f"{call.count * before.device / whole.before:.0%}" if whole.takes(call) else "alternative"
        host = _change(before.host, after.host) if before.host and self.regime is not Regime.GRAPH else ""
        faster = "" if self.machine.is_interpreter else f"{before.device / after.device:.2f}x"
        times_text, mode = _change(before.device, after.device), str(entry.winner.config["mode"])
        return [self.named(call), times_text, faster, host, mode, share]

    def _line(self, forward: Forward) -> str:
        whole = self.predicted(forward, self.regime)
        if not whole.before:
            return f"{forward.title}: nothing measured"
        texts = {each: self.predicted(forward, each).text(ratios=not self.machine.is_interpreter)
                 for each in (self.regime, Regime.GRAPH)}  # fmt: skip
        if texts[self.regime] == texts[Regime.GRAPH]:  # as where the host was not timed
            texts = {self.regime: texts[self.regime]}
        told = "; ".join(f"{TITLES[regime]} {each}" for regime, each in texts.items())
        alone, rest = whole.alone, ""
        if not forward.rest:
            rest = CALLS_ALONE
        elif alone:
            rest = f"; {microseconds(alone)} of each by roofline, without communication"
        return f"{forward.title}, predicted: {told}{rest}"

    def _forward_dict(self, forward: Forward) -> dict[str, Any]:
        found = self.predicted(forward, self.regime)
        return {
            "forward": forward.title,
            "predicted": found.as_dict(),
            "in_graph": self.predicted(forward, Regime.GRAPH).as_dict(),
            "calls": [self._call_dict(call, found.takes(call)) for call in forward.calls],
        }

    def sizes(self, problem: Problem) -> str:
        fields = problem.as_dict()
        names = [name for name in SIZES if name in fields]
        names += [name for name in self._varying[problem.workload] if name not in names]
        sizes = " ".join(f"{name}={shortened(plain(getattr(problem, name)))}" for name in names)
        return sizes + " verified" * self._is_verified(problem)

    def _is_verified(self, problem: Problem) -> bool:
        return problem in self.entries and self.entries[problem].winner.verified

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

    def _call_dict(self, call: Call, taken: bool) -> dict[str, Any]:
        times, entry = self.measured(self.regime).times(call), self.entries.get(call.problem)
        return {
            "layer": call.layer,
            "workload": call.problem.workload,
            "problem": call.problem.as_dict(),
            "calls": call.count,
            "place": call.place,
            "way": call.way,
            "taken": taken,
            "before": times and dataclasses.asdict(times[0]),
            "after": times and dataclasses.asdict(times[1]),
            "entry": Result.of(entry).to_dict() if entry is not None else None,
        }


def _change(before: float, after: float) -> str:
    one, other = microseconds(before), microseconds(after)
    return f"{one.split()[0] if one.split()[1] == other.split()[1] else one} → {other}"
