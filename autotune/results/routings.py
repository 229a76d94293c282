"""A mixture's winner under other routings than the one that it is tuned for: rows of a table, and one line each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.db import CacheKey, Winner
from autotune.errors import InputError
from autotune.outcome import Latency, Regime
from autotune.results.figures import Ratio, fastest, latency_text, ratio
from autotune.results.order import problem_type

EXPLAINED = (
    "Winner and its fastest baseline, checked and measured in turns, with tokens of other routings than the one tuned "
    "for. zipf 1: the i-th most popular expert is chosen as if with weight 1/i. One expert: every token has the same "
    "expert, and any others."
)

NOT_MEASURED = (
    "The winner's time under other routings was not measured: --effort quick leaves it out, as does a short --budget."
)

NOT_TIMED = "not timed: the budget ended"


@dataclass(frozen=True)
class UnderRouting:
    """The winner and its fastest baseline under one routing."""

    routing: str
    tuned_for: bool
    latency: Latency | None
    """None if the budget ended before."""
    baseline: str | None
    """None if there is none, or it failed."""
    baseline_latency: Latency | None
    ratio: Ratio | None
    """The baseline's time over the winner's; None if the baseline is the winner, too, and under the interpreter."""


def under_routings(key: CacheKey, winner: Winner) -> tuple[UnderRouting, ...]:
    """The routing tuned for, then the others if any was measured; empty if the problem is not of a mixture."""
    own, regime = own_routing(key), Regime(key.regime)
    if own is None:
        return ()
    found = [_row(own, winner.latency, winner.baselines, regime, tuned_for=True)]
    names = dict.fromkeys([*_others(key), *winner.routings] if winner.routings else [])
    for name in names:
        routed = winner.routings.get(name)
        missing = UnderRouting(name, False, None, None, None, None)
        found.append(missing if routed is None else _row(name, routed.latency, routed.baselines, regime))
    return tuple(replace(row, ratio=None) for row in found) if key.is_interpreted else tuple(found)


def _others(key: CacheKey) -> list[str]:
    """The names of all other routings; nothing where the workload is not installed, or has other fields today."""
    kind = problem_type(key.workload)
    try:
        return [] if kind is None else list(kind.from_dict(key.fields).other_routings())
    except InputError:
        return []


def own_routing(key: CacheKey) -> str | None:
    """The name of the routing that a config is tuned for; None for other problems than a mixture's."""
    fields = key.fields
    if key.is_kernel or not {"experts", "routing"} <= set(fields):
        return None
    exponent = fields.get("exponent")
    return f"{fields['routing']} {exponent:g}" if isinstance(exponent, float) and exponent else str(fields["routing"])


def line(row: UnderRouting, regime: Regime) -> str:
    """``zipf 1: 140.2 µs ± 0.5 %, 1.31 ± 0.02 times as fast as bsp graph (183.7 µs ± 0.3 %)``."""
    if row.latency is None:
        return f"{row.routing}: {NOT_TIMED}"
    text = f"{row.routing}: {latency_text(row.latency, regime)}"
    if row.ratio is None or row.baseline_latency is None:
        return text
    return f"{text}, {row.ratio.against(str(row.baseline))} ({latency_text(row.baseline_latency, regime)})"


def cells(row: UnderRouting, regime: Regime) -> list[str]:
    """The cells of a table under ``HEADER``."""
    if row.latency is None:
        return [row.routing, NOT_TIMED, "", ""]
    theirs = row.baseline_latency
    return [
        row.routing + ", tuned for" * row.tuned_for,
        latency_text(row.latency, regime),
        "not measured" if theirs is None else f"{row.baseline}: {latency_text(theirs, regime)}",
        "" if row.ratio is None else row.ratio.text,
    ]


HEADER = ["routing", "winner", "fastest baseline", "times as fast"]


def _row(
    routing: str, ours: Latency, baselines: dict[str, Latency], regime: Regime, *, tuned_for: bool = False
) -> UnderRouting:
    name = fastest(baselines, regime)
    theirs = None if name is None else baselines[name]
    compared = None if theirs is None or theirs.same_calls(ours) else ratio(theirs, ours, regime)
    return UnderRouting(routing, tuned_for, ours, name, theirs, compared)
