"""The regimes: latencies of winner and baselines in each, and baselines that beat the winner anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.db import CacheKey, Winner
from autotune.outcome import Latency, Regime
from autotune.results.figures import Ratio, fastest, microseconds, ratio, regime_options

TITLES = {Regime.GRAPH: "in a graph", Regime.PIPELINED: "pipelined", Regime.ISOLATED: "isolated"}

CALLERS = {
    Regime.GRAPH: "callers that replay it in a graph",
    Regime.PIPELINED: "eager callers whose host runs ahead",
    Regime.ISOLATED: "single calls on an idle GPU",
}

CAPTURE = (
    " A graph of the library's calls is only a baseline, since no operator replays one: a program gets it by capturing "
    "the operator in a graph of its own (regime graph)."
)


def title_of(key: CacheKey, regime: Regime) -> str:
    """The way in which a latency was taken: a kernel is timed alone, and interpreted calls are all alike."""
    if key.is_interpreted:
        return "interpreted"
    return "on the device" if key.is_kernel else TITLES[regime]


def tuned_for(key: CacheKey) -> str:
    """The caller for whom the config is the fastest."""
    if key.is_interpreted:
        return "calls under the interpreter" + ("" if key.is_kernel else regime_options(key.regime))
    return "launches of the kernel, by the device's time" if key.is_kernel else CALLERS[Regime(key.regime)]


def is_captured(baseline: str) -> bool:
    """True for a baseline or a model's way as a captured graph."""
    return baseline.endswith("graph")


def called_alike(baselines: Mapping[str, Latency], regime: Regime) -> dict[str, Latency]:
    """The baselines as a program in a regime calls the library: captured graphs in the regime ``graph`` alone."""
    return {name: each for name, each in baselines.items() if regime is Regime.GRAPH or not is_captured(name)}


@dataclass(frozen=True)
class Verdict:
    regime: Regime
    baseline: str
    ratio: Ratio
    """Baseline's time over the winner's."""
    winner_microseconds: float
    baseline_microseconds: float


def verdicts(winner: Winner) -> tuple[Verdict, ...]:
    """One verdict per regime in which the winner and a baseline were measured."""
    found = []
    for regime in Regime:
        there = {name: latency for name, latency in winner.baselines.items() if latency.knows(regime)}
        name = fastest(there, regime)
        if name is not None and winner.latency.knows(regime):
            ours, theirs = winner.latency, there[name]
            found.append(Verdict(regime, name, ratio(theirs, ours, regime), ours.of(regime), theirs.of(regime)))
    return tuple(found)


def conclusion(of: Sequence[Verdict], way: Callable[[str], str]) -> str:
    """One sentence on where the winner is slower than a baseline, named as its ``way``; empty where it is nowhere."""
    slower = [each for each in of if each.ratio.is_less]
    if not slower:
        return ""
    told = " and ".join(f"{TITLES[each.regime]} than {way(each.baseline)}" for each in slower)
    captured = any(is_captured(each.baseline) and each.regime is not Regime.GRAPH for each in slower)
    return f"The winner is slower {told}." + CAPTURE * captured


def overhead_text(latency: Latency) -> str:
    """A sentence on the operator's own part of a winner's times; empty where that was not measured."""
    overheads = {Regime.PIPELINED: latency.host_overhead, Regime.ISOLATED: latency.isolated_overhead}
    parts = [f"{microseconds(part)} {TITLES[regime]}" for regime, part in overheads.items() if part is not None]
    if not parts:
        return ""
    return (
        f"The winner's host time includes what our operator adds to the kernels' launches: {', '.join(parts)}. The "
        "baselines are the library's calls without it."
    )
