"""Figures and their text: latencies with their spread, ratios with their error, problems and configs."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.config import Config
from autotune.db.records import CacheKey
from autotune.machine import INTERPRETER
from autotune.outcome import DEFAULT_REGIME, Latency, Outcome, Regime
from autotune.rounds import log_ratios, mean_and_error
from autotune.text import counted, shortened, visible
from autotune.text import microseconds as microseconds  # for people, like the others here

INTERPRETER_NOTE = "Times are from Triton's interpreter on CPUs; they say nothing about GPUs."

UNSTEADY = 1.25
"""Times as long in the finals as in the search, or as short, from which the machine must have changed meanwhile."""


NOT_TOLD_APART = "not told apart"


@dataclass(frozen=True)
class Ratio:
    """A quotient of two measured times. Its error is half of a 95 % interval if both have rounds; else it comes from
    the spreads of their iterations, which do not cover changes between rounds.
    """

    value: float
    error: float
    rounds: int = 0
    """The number of rounds in which both were measured in turns; 0 if unknown."""

    def __str__(self) -> str:
        return self.figures + ("" if self.rounds else " (by spread)")

    @property
    def figures(self) -> str:
        digits = 2 if self.error >= 0.005 or self.error == 0 else 3
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"

    @property
    def is_told(self) -> bool:
        """False if the error is larger than the difference: nobody can use the figures."""
        return abs(self.value - 1) >= self.error

    @property
    def text(self) -> str:
        return str(self) if self.is_told else NOT_TOLD_APART

    @property
    def brief(self) -> str:
        return f"{self.value:.2f}" if self.is_told else NOT_TOLD_APART

    def against(self, name: str) -> str:
        """``1.30 ± 0.02 times as fast as bsp graph``, ``not told apart from bsp graph``."""
        return f"{self.figures} times as fast as {name}" if self.is_told else f"{NOT_TOLD_APART} from {name}"

    @property
    def is_less(self) -> bool:
        """True if the value is below 1 by more than its error."""
        return self.value + self.error < 1


def ratio(numerator: Latency, denominator: Latency, regime: Regime = DEFAULT_REGIME) -> Ratio:
    """Time of the first over the second, round by round; with fewer than two rounds, by medians and spreads."""
    pairs = log_ratios(numerator.in_rounds(regime), denominator.in_rounds(regime))
    if len(pairs) < 2:
        value = numerator.of(regime) / denominator.of(regime)
        return Ratio(value, value * math.hypot(numerator.spread, denominator.spread))
    mean, error = mean_and_error(pairs)
    return Ratio(math.exp(mean), math.exp(mean) * error, len(pairs))


@dataclass(frozen=True)
class Speedup:
    """A config against one baseline of the same run, in the regime tuned for."""

    baseline: str
    latency: Latency
    ratio: Ratio | None
    """None under the interpreter, whose times say nothing about a ratio."""
    is_winner: bool
    """True for a baseline that no config beat."""

    @property
    def text(self) -> str:
        return "" if self.ratio is None else self.ratio.text


def speedups(
    baselines: Mapping[str, Latency], latency: Latency, regime: Regime, *, interpreted: bool = False
) -> tuple[Speedup, ...]:
    """The fastest baseline first."""
    return tuple(
        Speedup(name, each, None if interpreted else ratio(each, latency, regime), each.same_calls(latency))
        for name, each in sorted(baselines.items(), key=lambda pair: pair[1].of(regime))
    )


def slowest(parts: Mapping[str, Latency]) -> str | None:
    """The name of the slowest part; None if there is none."""
    return max(parts, key=lambda name: parts[name].median, default=None)


def fastest(latencies: Mapping[str, Latency], regime: Regime = DEFAULT_REGIME) -> str | None:
    """The name of the fastest one; None if there is none."""
    return min(latencies, key=lambda name: latencies[name].of(regime), default=None)


COMPUTING = ("gemm", "attention")
"""Parts of an operation that compute, by name."""


def overlap_efficiency(
    latency: Latency, baselines: Mapping[str, Latency], limits: Mapping[str, Latency]
) -> float | None:
    """The share that a config hides of the communication that the fastest baseline exposes, on the device: 1 hides all.

    E = 1 - ECT / ECT(baseline), where a way's ECT, its effective communication time, is its time less that of the
    computation alone (Flux, arXiv 2406.06858, equations 1 and 2). None where a part is not known, or the baseline
    exposes nothing.
    """
    alone = next((limits[name].median for name in COMPUTING if name in limits), None)
    baseline = fastest(baselines, Regime.GRAPH)
    if alone is None or baseline is None:
        return None
    exposed = baselines[baseline].of(Regime.GRAPH) - alone
    return 1 - (latency.of(Regime.GRAPH) - alone) / exposed if exposed > 0 else None


def instead_text(ours: float, theirs: float) -> str:
    """``19.58 µs instead of 28.03``; of another unit with its own."""
    one, other = microseconds(ours), microseconds(theirs)
    number, unit = other.split()
    return f"{one} instead of {number if one.endswith(f' {unit}') else other}"


def evaluated(outcomes: Mapping[Outcome, int]) -> int:
    """The number of configs that a search tried; what the space or the compiler's figures rule out is not tried."""
    return sum(count for outcome, count in outcomes.items() if outcome is not Outcome.INVALID)


def outcomes_text(outcomes: Mapping[Outcome, int]) -> str:
    """``113 measured, 7 out of resources; 8 invalid ones not counted``: the commonest first."""
    counts = sorted(outcomes.items(), key=lambda pair: -pair[1])
    tried = ", ".join(f"{count} {outcome}" for outcome, count in counts if count and outcome is not Outcome.INVALID)
    invalid = outcomes.get(Outcome.INVALID, 0)
    return (tried or "none") + (f"; {counted(invalid, 'invalid one')} not counted" if invalid else "")


def drift_text(drift: float | None) -> str:
    """A sentence on a machine that was another in the finals than in the search; empty for one that was not."""
    if drift is None or 1 / UNSTEADY < drift < UNSTEADY:
        return ""
    return (
        f"Configs took {drift:.2f} times as long in the finals as in the search: meanwhile the GPUs' clocks changed, "
        "or other programs used them. The choice may not last: run tune doctor, then tune again with --force."
    )


def has_rounds(latency: Latency, regime: Regime = DEFAULT_REGIME) -> bool:
    """True if there are rounds enough for an interval, two; else its error is the spread of the iterations."""
    return len(latency.in_rounds(regime)) > 1


def relative_error(latency: Latency, regime: Regime = DEFAULT_REGIME) -> float:
    """Half of a latency's 95 % interval by its rounds, else half the spread of its iterations; relative to it."""
    if not has_rounds(latency, regime):
        return latency.spread
    return mean_and_error([math.log(each) for each in latency.in_rounds(regime)])[1]


def latency_text(latency: Latency, regime: Regime = DEFAULT_REGIME) -> str:
    """The latency with its error, ``408.2 µs ± 1.2 %``: from the rounds, else the spread of the iterations."""
    error = relative_error(latency, regime)
    percent = f"{100 * error:.1f} %" if error < 1 else "over 100 %"  # two rounds that differ much
    return f"{microseconds(latency.of(regime))} ± {percent}"


SAYS_NOTHING = (False, "none", "auto", "", "halves")
"""Values of a problem's fields that ask for nothing; ``halves`` is how everybody lays out gate and up."""


def problem_text(problem: Mapping[str, Any]) -> str:
    """A problem in one line, sizes first; without the world size, which stands beside the device. A workload's fields
    that say nothing are left out; a decorated kernel, whose key has no world size, may mean something by them.
    """
    quiet = SAYS_NOTHING if "world_size" in problem else ()
    names = [name for name, value in problem.items() if name != "world_size" and value not in quiet]
    names.sort(key=lambda name: not isinstance(problem[name], int) or isinstance(problem[name], bool))
    return " ".join(f"{plain(name)}={shortened(plain(problem[name]))}" for name in names)


def title(workload: str, problem: Mapping[str, Any]) -> str:
    return f"{dashed(workload)}  {problem_text(problem)}"


def config_text(config: Config) -> str:
    """A config in one line, as name=value pairs, its mode first."""
    names = sorted(config, key=lambda name: name != "mode")
    return " ".join(f"{plain(name)}={plain(config[name])}" for name in names)


def change_text(config: Config, other: Config, name: str = "the winner") -> str:
    """A config in one line, as its difference from another, ``name``, if both have the same mode."""
    if config == other:
        return name
    if set(config) != set(other) or config.get("mode") != other.get("mode"):
        return config_text(config)
    changed = Config({key: value for key, value in config.items() if value != other[key]})
    return f"{name} with {config_text(changed)}"


def plain(value: Any) -> str:
    """A value as in JSON, strings without quotes; one line, hidden characters escaped."""
    return visible(value) if isinstance(value, str) else json.dumps(value)


def device_text(key: CacheKey) -> str:
    """The ranks and the device of a key."""
    if key.is_interpreted:
        return f"{counted(key.world_size, 'rank')} under Triton's interpreter ({INTERPRETER})"
    return visible(f"{key.world_size} × {key.device} ({key.arch}, {key.interconnect})")


def devices_text(key: CacheKey) -> str:
    """``4 × H200``."""
    return visible(f"{key.world_size} × {key.device.removeprefix('NVIDIA ')}")


def regime_options(regime: str) -> str:
    """The command line's option for a regime; empty for the default."""
    return "" if regime == DEFAULT_REGIME else f" --regime {regime}"


def asked_text(key: CacheKey, problem: Mapping[str, Any]) -> str:
    """A problem in one line, with the regime that it was asked for in where that is not the default."""
    return problem_text(problem) + ("" if key.is_kernel else regime_options(key.regime))


def resource_text(resource: str) -> str:
    """The name of a roofline's resource in texts."""
    return "arithmetic" if resource == "flops" else resource


def dashed(name: str) -> str:
    return visible(name).replace("_", "-")


def options_text(fields: Mapping[str, Any]) -> str:
    """A problem's fields as command-line options, quoted for a shell."""
    words = []
    for name, value in fields.items():
        option = shlex.quote(dashed(name))
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value != "":
            words.append(f"--{option} {shlex.quote(plain(value))}")
    return " ".join(words)
