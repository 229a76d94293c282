"""The measured taxes of one problem: every round, and what follows from them; to and from JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune import schema
from autotune.config import Config
from autotune.errors import InputError
from autotune.taxes import ladder
from autotune.taxes.arithmetic import Estimate, differences, estimate, same_clock, slack, slopes
from autotune.taxes.ladder import Step
from autotune.timeline import Traced

FORMAT = 2

BY_DOSE = ("launches", "late")
"""Fields whose doses are pairs in JSON, which keeps order and numbers."""

Rounds = tuple[float, ...]
Doses = dict[float, Rounds]
"""Microseconds of each round, by dose."""


@dataclass(frozen=True)
class Taxes:
    """The measurements of ``tune taxes`` for a study's problem. Times are in microseconds, of the slowest rank."""

    winner: Config
    base: Config
    """The config whose tile the ladder's own rungs have."""
    origin: str
    configs: dict[str, Config]
    """The rungs' configs, by letter."""
    missing: dict[str, str]
    """Reasons for missing rungs, by letter."""
    rounds: dict[str, Rounds]
    """The rungs' times, by letter: a median a round, all rounds."""
    parts: dict[str, Rounds]
    """The operation's parts alone, in the same rounds."""
    clocks: dict[str, Rounds]
    """MHz of the slowest GPU in each turn, by letter; empty under the interpreter."""
    launches: dict[str, Doses]
    """Empty launches between the phases, by letter."""
    boundaries: int
    """Boundaries between launches that B has and D has not."""
    late: dict[str, Doses]
    """Microseconds by which one rank was late, by letter."""
    barrier: Rounds = ()
    """A barrier of all ranks on the device, less an empty launch."""
    interpreted: bool = False
    traces: dict[str, Traced] = field(default_factory=dict)
    """One traced call, by letter; stored with some programs only."""

    @property
    def _same_clock(self) -> list[bool]:
        """True for each round in which all rungs ran at one clock."""
        return same_clock(self.clocks, min((len(rounds) for rounds in self.rounds.values()), default=0))

    @property
    def kept(self) -> list[int]:
        """The rounds that count: those of one clock; all where there are not two of these."""
        same = self._same_clock
        return [number for number, kept in enumerate(same) if kept or sum(same) < 2]

    @property
    def dropped(self) -> int:
        """Rounds that do not count, because clocks differed within them."""
        return len(self._same_clock) - len(self.kept)

    @property
    def clocks_differ(self) -> bool:
        """True if clocks differed in nearly every round: power then looks like a tax."""
        return len(self._same_clock) >= 2 > sum(self._same_clock)

    @property
    def rungs(self) -> dict[str, Rounds]:
        """The rungs' counting rounds in the ladder's order, L the slowest part of each round."""
        kept = self.kept
        letters = [letter for letter in ladder.RUNGS if letter in self.rounds]
        found = {letter: tuple(self.rounds[letter][i] for i in kept) for letter in letters}
        if self.parts:
            found["L"] = tuple(max(rounds[i] for rounds in self.parts.values()) for i in kept)
        return found

    @property
    def steps(self) -> list[Step]:
        return ladder.steps(self.rungs, winner_apart="W" in self.rounds, dosed=ladder.PHASED in self.launches)

    def of_rung(self, letter: str) -> Estimate:
        return estimate(self.rungs[letter])

    def of_step(self, step: Step) -> Estimate:
        return self._total([step])

    def of_tax(self, tax: str) -> Estimate | None:
        """One of ``ladder.TAXES``; None where a rung is missing that tells it from others."""
        own = ladder.tax_of(tax, self.steps)
        return None if own is None else self._total(own)

    def _total(self, steps: Sequence[Step]) -> Estimate:
        """The steps' heights: ways by paired rounds, boundaries by the dose's rounds."""
        rungs = self.rungs
        ways = [(rungs[step.above], rungs[step.below]) for step in steps if step.boundaries <= 0]
        count = self.boundaries * sum(step.boundaries for step in steps)
        terms = [differences(ways)] if ways else []
        if count:
            terms.append([count * each for each in slopes(self.launches[ladder.PHASED])])
        return estimate(*terms)

    def launch_slopes(self) -> dict[str, Estimate]:
        """Microseconds that one more launch between the phases costs, by letter."""
        return {letter: estimate(slopes(doses)) for letter, doses in self.launches.items()}

    def late_slopes(self) -> dict[str, Estimate]:
        """The share of a rank's lateness that is passed on, by letter."""
        return {letter: estimate(slopes(doses)) for letter, doses in self.late.items()}

    def slacks(self) -> dict[str, float]:
        """Microseconds of a rank's lateness that a rung absorbs, by letter."""
        return {letter: slack(doses) for letter, doses in self.late.items()}

    def to_json(self) -> str:
        """All that was measured, of a trace some programs; what follows from it is not kept."""
        traces = {letter: each.sampled() for letter, each in self.traces.items()}
        values = schema.write(dataclasses.replace(self, traces=traces))
        for name in BY_DOSE:
            values[name] = {letter: list(doses.items()) for letter, doses in values[name].items()}
        return json.dumps({"format": FORMAT, **values})

    @classmethod
    def from_json(cls, text: str) -> Taxes:
        """Raises InputError for what ``to_json`` did not write."""
        try:
            values: dict[str, Any] = json.loads(text)
            if values.pop("format") != FORMAT:
                raise InputError("taxes were measured by another version; measure them again: tune taxes")
            for name in BY_DOSE:
                values[name] = {letter: dict(pairs) for letter, pairs in values[name].items()}
            return schema.read(cls, values)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise InputError(f"stored taxes are damaged ({error}); measure them again: tune taxes") from error


def summary(taxes: Taxes) -> dict[str, Any]:
    """Steps, taxes and slopes of the measurements, as plain values: for ``--json`` and for programs."""
    rungs = {letter: taxes.of_rung(letter) for letter in taxes.rungs}
    found = {tax: taxes.of_tax(tax) for tax in ladder.TAXES}
    return {
        "rungs": {letter: {"is": ladder.RUNGS[letter], **_estimate(each)} for letter, each in rungs.items()},
        "steps": [
            {"from": step.above, "to": step.below, "causes": step.causes, **_estimate(taxes.of_step(step))}
            for step in taxes.steps
        ],
        "taxes": {tax: None if each is None else _estimate(each) for tax, each in found.items()},
        "missing": taxes.missing,
        "rounds": len(taxes.kept),
        "rounds_dropped": taxes.dropped,
        "boundaries": taxes.boundaries,
        "launch_slopes": {letter: _estimate(each) for letter, each in taxes.launch_slopes().items()},
        "late_slopes": {letter: _estimate(each) for letter, each in taxes.late_slopes().items()},
        "slack": {letter: None if each == float("inf") else each for letter, each in taxes.slacks().items()},
        "barrier": _estimate(estimate(taxes.barrier)) if taxes.barrier else None,
        "traced": {letter: {"slowdown": each.slowdown} for letter, each in taxes.traces.items()},
        "interpreted": taxes.interpreted,
    }


def _estimate(found: Estimate) -> dict[str, Any]:
    return {"microseconds": found.value, "low": found.low, "high": found.high, "nil": found.is_nil}
