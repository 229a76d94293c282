"""A winner under other inputs than those that it is tuned for, a mixture's routings or a batch's lengths: rows of a
table, and one line each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.db import CacheKey, Routed, Winner
from autotune.errors import InputError
from autotune.outcome import Latency, Regime
from autotune.results.figures import Speedup, latency_text, speedups
from autotune.results.order import problem_type

NOT_TIMED = "not timed: the budget ended"


@dataclass(frozen=True)
class UnderRouting:
    """The winner under one routing, against its fastest baseline there."""

    routing: str
    tuned_for: bool
    latency: Latency | None
    """None if the budget ended before."""
    speedup: Speedup | None
    """None if there is no baseline, or it failed."""

    @property
    def other(self) -> Latency | None:
        """The fastest baseline, unless it is the winner."""
        return None if self.speedup is None or self.speedup.is_winner else self.speedup.latency

    @property
    def title(self) -> str:
        return self.routing + ", tuned for" * self.tuned_for


def under_routings(key: CacheKey, winner: Winner) -> tuple[UnderRouting, ...]:
    """The routing tuned for, then the others if any was measured; empty if the problem is not of a mixture."""
    own = own_routing(key)
    if own is None:
        return ()
    found = {own: Routed(winner.latency, winner.baselines), **winner.routings}
    names = dict.fromkeys([own, *_others(key), *winner.routings] if winner.routings else [own])
    return tuple(_row(key, name, found.get(name), tuned_for=name == own) for name in names)


def _row(key: CacheKey, routing: str, routed: Routed | None, *, tuned_for: bool) -> UnderRouting:
    if routed is None:
        return UnderRouting(routing, tuned_for, None, None)
    found = speedups(routed.baselines, routed.latency, Regime(key.regime), interpreted=key.is_interpreted)
    return UnderRouting(routing, tuned_for, routed.latency, next(iter(found), None))


def _others(key: CacheKey) -> list[str]:
    """The names of all other routings; nothing where the workload is not installed, or has other fields today."""
    kind = problem_type(key)
    try:
        return [] if kind is None else list(kind.from_dict(key.fields).other_routings())
    except InputError:
        return []


def own_routing(key: CacheKey) -> str | None:
    """The name of the routing, or lengths, that a config is tuned for; None for problems that have neither."""
    fields = key.fields
    if of_lengths(key):
        return "recorded" if fields["lengths"][:1].isdecimal() else str(fields["lengths"])
    if key.is_kernel or not {"experts", "routing"} <= set(fields):
        return None
    exponent = fields.get("exponent")
    return f"{fields['routing']} {exponent:g}" if isinstance(exponent, float) and exponent else str(fields["routing"])


def of_lengths(key: CacheKey) -> bool:
    """True for a batch of several sequences."""
    return not key.is_kernel and {"batch", "lengths"} <= set(key.fields) and key.fields["batch"] > 1


def inputs_named(key: CacheKey) -> str:
    """A person's word for the inputs that a winner is timed under."""
    return "lengths" if of_lengths(key) else "routings"


def line(row: UnderRouting, regime: Regime, way: Callable[[str], str]) -> str:
    """``zipf 1: 140.2 µs ± 0.5 %, 1.31 ± 0.02 times as fast as NCCL``, which is the ``way`` of the baseline's name."""
    if row.latency is None:
        return f"{row.routing}: {NOT_TIMED}"
    text, first = f"{row.routing}: {latency_text(row.latency, regime)}", row.speedup
    if first is None or first.ratio is None or first.is_winner:
        return text
    return f"{text}, {first.ratio.against(way(first.baseline))}"
