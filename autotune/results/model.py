"""A report as frozen dataclasses: all facts about one finished study, before they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from autotune.config import Config, Value
from autotune.db.records import CacheKey, Provenance, Roofline
from autotune.notebook import html_table
from autotune.outcome import Latency, Outcome, Regime
from autotune.results.figures import (
    BEYOND_LIMIT,
    Ratio,
    config_text,
    dashed,
    device_text,
    latency_text,
    problem_text,
    share_text,
)
from autotune.results.regimes import Verdict
from autotune.results.routings import UnderRouting
from autotune.results.words import has_words, in_words
from autotune.taxes.result import Taxes


@dataclass(frozen=True)
class Speedup:
    """The winner against one baseline of the same run, in the regime tuned for."""

    baseline: str
    latency: Latency
    ratio: Ratio | None
    """None under the interpreter, whose times say nothing about a ratio."""

    @property
    def text(self) -> str:
        return "" if self.ratio is None else self.ratio.text

    def compared(self, taken: str) -> str:
        """``1.30 ± 0.02 times as fast (408.2 µs)``; the time alone under the interpreter."""
        if self.ratio is None:
            return taken
        return f"{self.text} times as fast ({taken})" if self.ratio.is_told else f"{self.text} ({taken})"

    @property
    def sentence(self) -> str:
        """``1.30 ± 0.02 times as fast as bsp graph``; empty under the interpreter."""
        return "" if self.ratio is None else self.ratio.against(self.baseline)


@dataclass(frozen=True)
class Limit:
    """The operation's parts alone, as the library does them; perfect overlap takes as long as the slowest."""

    parts: dict[str, Latency]
    shares: dict[str, Ratio]
    """Each part's time over the winner's, on the device."""
    slowest: str
    efficiency: float | None = None
    """The overlap efficiency, see ``figures.overlap_efficiency``."""

    @property
    def share(self) -> Ratio:
        """The slowest part's; 1 is perfect overlap."""
        return self.shares[self.slowest]


@dataclass(frozen=True)
class Tax:
    """A cost of the bulk-synchronous way, as far as measurements can separate it."""

    name: str
    microseconds: float
    error: float
    meaning: str


@dataclass(frozen=True)
class Ranked:
    """One of the best configs, with its latency in the search and, if it was there, in the finals."""

    config: Config
    latency: Latency
    final: Latency | None
    source: str
    winner: bool


@dataclass(frozen=True)
class Ending:
    """The number of evaluations with one outcome, and an example."""

    outcome: Outcome
    count: int
    reason: str
    example: Config | None

    @property
    def title(self) -> str:
        """The outcome; configs that are invalid are not among those that were evaluated."""
        return "invalid, not counted" if self.outcome is Outcome.INVALID else self.outcome.value


@dataclass(frozen=True)
class Reached:
    """The best latency among configs with one value."""

    value: Value
    best: float
    relative: float
    """Latency over the best of all configs that have the dimension; 1 is as good as any of them."""
    configs: int
    """The number of measured configs with the value."""


@dataclass(frozen=True)
class Knob:
    name: str
    help: str
    reached: tuple[Reached, ...]
    importance: float | None


@dataclass(frozen=True)
class Report:
    key: CacheKey
    provenance: Provenance
    problem: dict[str, Any]
    study_id: int
    seed: int
    space_size: int
    finished_at: datetime
    config: Config
    latency: Latency
    speedups: tuple[Speedup, ...]
    """The fastest baseline first."""
    limit: Limit | None
    roofline: Roofline | None
    """A second limit, which no kernel passes: from the problem's flops and bytes at this device's measured rates."""
    in_regimes: dict[str, dict[str, float]]
    """Microseconds of winner and baselines, by name and measured regime."""
    verdicts: tuple[Verdict, ...]
    """The winner against the fastest baseline of each regime."""
    routings: tuple[UnderRouting, ...]
    """The winner under the routing that a mixture was tuned for, and under others that were measured."""
    taxes: tuple[Tax, ...]
    """Taxes as far as the finals tell them."""
    ladder: Taxes | None
    """The measurements of ``tune taxes``; None if it was not run."""
    best: tuple[Ranked, ...]
    endings: tuple[Ending, ...]
    disqualified: tuple[Ranked, ...]
    """Configs that failed later, in the finals or their proof; latencies are those of the search."""
    knobs: tuple[Knob, ...]
    searched: int
    """Configs evaluated by the search, baselines among them."""
    remeasured: int
    """Evaluations of the finals."""
    seconds: float
    """Spent in evaluations, search and finals."""
    measuring: float
    """The part of ``seconds`` in which the ranks measured; in the rest they compiled and checked."""
    restarts: int = 0
    """Configs that killed the ranks, …"""
    restarting: float = 0.0
    """… and the part of ``seconds`` spent on restarting them."""
    rank_correlation: float | None = None
    """Spearman's, between the cost model's predictions and the search's latencies; None if too few have both."""
    notes: tuple[str, ...] = ()
    """Caveats that come first in the report."""
    knob_notes: tuple[str, ...] = ()
    """Optuna's warnings about its importances."""
    origin: str = ""
    """``FILE:NAME`` of a decorated kernel or of a workload of one's own."""
    copies: dict[str, str] = field(default_factory=dict)
    """The config to paste, by the place where it is needed."""
    repeat: str = ""
    """The command that tunes it again; for a decorated kernel, the call in its program."""

    @property
    def regime(self) -> Regime:
        return Regime(self.key.regime)

    @property
    def summary(self) -> list[tuple[str, str]]:
        """The winner against its baselines and the limit, in words, and to paste: named lines."""
        key, regime = self.key, self.regime
        lines = [
            ("problem", f"{dashed(key.workload)} {problem_text(self.problem)}"),
            ("device", device_text(key)),
            ("latency", latency_text(self.latency, regime)),
        ]
        lines += [
            (f"against {each.baseline}", each.compared(latency_text(each.latency, regime)))
            for each in self.speedups
            if not each.latency.same_calls(self.latency)
        ]
        if self.limit is not None:
            lines.append(("limit", share_text(self.limit.share.value, "limit", BEYOND_LIMIT)))
        lines.append(("config", config_text(self.config)))
        if has_words(key):
            lines.append(("in words", in_words(key.workload, self.config)))
        lines += [(f"as {name}", text) for name, text in self.copies.items()]
        lines += [("note", note) for note in self.notes]
        return [*lines, ("again", self.repeat)]

    def _repr_html_(self) -> str:
        """Summary for notebooks; the page has the rest."""
        return html_table("Report", self.summary)
