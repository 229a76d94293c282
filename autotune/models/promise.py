"""The time of a forward's operators before and after tuning, as tuning measured them: of alternatives one, and the host
and the device each by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autotune.db import Entry, Winner
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.kernels.gemm.problem import GemmProblem
from autotune.machine import Machine
from autotune.models.forward import Call, Place, Way, places, repeated
from autotune.models.gains import estimate, starting
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.results.figures import fastest, slowest
from autotune.results.regimes import called_alike
from autotune.task import Task

GATHERED = ("all_gather", "all_to_all")
"""The part of a problem's limits that is its gather alone; of a mixture's an exchange of as many bytes."""

NCCL_GAP = 4.0
"""Microseconds that NCCL costs its neighbours in a captured forward, beside its GEMM: it starts 5 to 6 µs after the
kernel before it, and the next one 2 µs after it, where others follow in 0.3 to 0.8; finals see but the gap between the
two. Plain torch's forwards of 8 and 128 tokens took 6.3 and 3.9 µs a collective longer than predicted, beyond what ours
did (Qwen3-32B, 2 H200, 2026-11-30). A mixture's way has other kernels around its collectives, which finals see.
"""

HEADROOM = 1.12
"""Times as long as the winner of its search that a default takes (34 searches, 2 H100, 2026-11-26)."""


@dataclass(frozen=True)
class Sums:
    """Microseconds of a forward's calls. The host and the device overlap, so each has a sum of its own."""

    device: float = 0.0
    host: float = 0.0
    """Time to enqueue the calls."""
    isolated: float = 0.0
    """Time if each call is waited for."""

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.device + other.device, self.host + other.host, self.isolated + other.isolated)

    def __mul__(self, times: float) -> Sums:
        return Sums(self.device * times, self.host * times, self.isolated * times)

    def __sub__(self, other: Sums) -> Sums:
        """Nowhere below zero."""
        less = self + other * -1
        return Sums(max(0.0, less.device), max(0.0, less.host), max(0.0, less.isolated))

    def took(self, regime: Regime) -> float:
        """Microseconds of a forward that is run in this way."""
        if regime is Regime.GRAPH:
            return self.device
        return max(self.device, self.host, self.isolated if regime is Regime.ISOLATED else 0.0)


@dataclass(frozen=True)
class Choice:
    """A way, with what its place takes before and after, and at the way's limits."""

    way: Way
    before: Sums
    after: Sums
    limits: Sums

    def gain(self, regime: Regime) -> float:
        return self.before.took(regime) - self.after.took(regime)


@dataclass(frozen=True)
class Totals:
    before: Sums
    after: Sums
    limits: Sums
    taken: frozenset[Way]
    untuned: tuple[Place, ...]
    """Places that are not in the sums."""


@dataclass(frozen=True)
class Promise:
    """Microseconds of all operators of one forward, as tuning measured them; those of untuned ones are left out."""

    library: float
    """Time with each operation's fastest library baseline."""
    winners: float
    limits: float
    """Lower bound: only the slower part of each, communication or computation."""
    untuned: int = 0
    """Calls that are not in it."""

    @property
    def gain(self) -> float:
        return self.library - self.winners

    @property
    def most(self) -> float:
        """The gain at the limits."""
        return self.library - self.limits


@dataclass(frozen=True)
class Measured:
    """What tuning measured, for forwards that are run in one way."""

    entry_of: Callable[[Problem], Entry | None]
    """A problem's own entry; None where it is not tuned."""
    machine: Machine
    regime: Regime
    """The one tuned for, in which the compiler's pass compares ways."""
    run: Regime
    """The one in which a forward is run."""
    gaps: bool = True
    """With ``NCCL_GAP``; without it operators are compared, as the compiler's pass compares them."""

    def totals(self, calls: Iterable[Call]) -> Totals:
        before = after = limits = Sums()
        taken, untuned = set(), []
        for place in places(calls):
            choice = self.choice(place)
            if choice is None:
                untuned.append(place)
                continue
            before, after, limits = before + choice.before, after + choice.after, limits + choice.limits
            taken.add(choice.way)
        return Totals(before, after, limits, frozenset(taken), tuple(untuned))

    def promised(self, calls: Iterable[Call]) -> Promise:
        """Winners take no less than their limits here, so that ``gain`` is at most ``most`` in spite of noise."""
        found = self.totals(calls)
        library, winners, limits = (each.took(self.run) for each in (found.before, found.after, found.limits))
        untuned = sum(call.count for place in found.untuned for call in place[0])
        return Promise(library, winners, min(winners, limits), untuned)

    def choice(self, place: Place) -> Choice | None:
        """The way that saves most, as the compiler's pass takes it; None where none is tuned.

        The place is as large as its largest way: what a smaller one leaves, such as a norm, is done before and after.
        The device tells which is the largest, since the host's times have outliers.
        """
        judged = self._judged(place)
        if not judged:
            return None
        taken = max(judged, key=lambda each: each.gain(self.regime))
        found = {each.way: each for each in self._ways(place)}
        best, whole = found[taken.way], max((each.before for each in found.values()), key=lambda each: each.device)
        outside = whole - best.before
        stays = taken.way[0].place and taken.gain(self.regime) <= 0
        return Choice(best.way, whole, whole if stays else best.after + outside, best.limits + outside)

    def contenders(self, place: Place) -> set[Problem]:
        """The problems of ways that may turn out to be the best, once those that were only verified are searched."""
        judged = self._judged(place)
        most = max((each.gain(self.regime) for each in judged), default=0.0)
        return {
            call.problem
            for each in judged
            for call in each.way
            if each.before.took(self.regime) - each.after.took(self.regime) / self._headroom(each.way) >= most
        }

    def _judged(self, place: Place) -> list[Choice]:
        return dataclasses.replace(self, run=self.regime, gaps=False)._ways(place)

    def times(self, call: Call) -> tuple[Sums, Sums] | None:
        """One call by the library, as such a forward calls it, and by the winner; None where it is not tuned.

        A time counts where it is known of both. Where the library's way failed, the winner stands in for it.
        """
        entry = self.entry_of(call.problem)
        if entry is None:
            return None
        ways = called_alike(entry.winner.baselines, self.run)
        name = fastest(ways, self.run)
        both = (entry.winner.latency if name is None else ways[name], entry.winner.latency)
        host, isolated = (all(each.knows(way) for each in both) for way in (Regime.PIPELINED, Regime.ISOLATED))
        before, after = (Sums(each.median, host * (each.host or 0), isolated * (each.isolated or 0)) for each in both)
        gather = before * self._gathering(call.problem, entry.winner)
        start = gather * starting(Task(call.problem, self.machine))
        return before - start * call.spared, after + gather * call.gathers

    def _ways(self, place: Place) -> list[Choice]:
        """The tuned ones, each by itself."""
        return [
            self._way(way, repeated(way, place))
            for way in place
            if all(self.entry_of(call.problem) is not None for call in way)
        ]

    def _way(self, way: Way, repeated: int) -> Choice:
        """``repeated``: calls that share their gather with another one, where the library gathers once."""
        before = after = limits = gather = Sums()
        for call in way:
            entry, times = self.entry_of(call.problem), self.times(call)
            assert entry is not None and times is not None
            winner, part = entry.winner, slowest(entry.winner.limits)
            alone = self.run is Regime.GRAPH and isinstance(call.problem, GemmProblem | AllReduceNorm)
            gap = Sums(NCCL_GAP if alone and self.gaps else 0.0)
            library, ours = times[0] + gap, times[1] + (gap if winner.config["mode"] == "bsp" else Sums())
            beyond = 0.0 if part is None else max(0.0, winner.latency.median - winner.limits[part].median)
            before, after = before + library * call.count, after + ours * call.count
            limits += Sums(device=(ours.device - beyond) * call.count)
            gathering = times[0] * self._gathering(call.problem, entry.winner) + gap
            gather = max(gather, gathering, key=lambda each: each.device)
        return Choice(way, before - gather * repeated, after, limits)

    def _gathering(self, problem: Problem, winner: Winner) -> float:
        """The collective's share of the library's time: as measured alone, else by rooflines."""
        for part in GATHERED:
            if part in winner.limits:
                return winner.limits[part].median / sum(each.median for each in winner.limits.values())
        found = estimate(Task(problem, self.machine))
        return found.moving / found.before

    def _headroom(self, way: Way) -> float:
        entries = [self.entry_of(call.problem) for call in way]
        return HEADROOM if any(entry is not None and entry.winner.verified for entry in entries) else 1.0
