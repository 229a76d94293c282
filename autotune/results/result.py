"""A result: a winner and everything that follows from its measurements, computed once, for every renderer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotune import schema
from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Roofline, Winner
from autotune.db.values import entry_values, key_values
from autotune.errors import UnknownWorkload
from autotune.machine import versions
from autotune.outcome import Latency, Regime
from autotune.results.figures import (
    NOT_TOLD_APART,
    Ratio,
    Speedup,
    asked_text,
    dashed,
    overlap_efficiency,
    ratio,
    slowest,
    speedups,
)
from autotune.results.library import baseline_name, libraries
from autotune.results.order import config_in_order, fields_in_order, problem_type
from autotune.results.regimes import Verdict, verdicts
from autotune.results.repeat import copies
from autotune.results.routings import UnderRouting, under_routings
from autotune.workloads import Workload
from autotune.workloads.descriptors import installed_provenance


@dataclass(frozen=True)
class Limit:
    """The operation's parts alone, as the library does them; perfect overlap takes as long as the slowest."""

    parts: dict[str, Latency]
    shares: dict[str, Ratio]
    """Each part's time over the winner's, on the device."""
    slowest: str
    efficiency: float | None
    """The overlap efficiency, see ``figures.overlap_efficiency``."""

    @property
    def share(self) -> float:
        """The slowest part's; 1 is perfect overlap."""
        return self.shares[self.slowest].value

    @property
    def text(self) -> str:
        beyond = "faster than the library's slower part alone"
        return beyond if self.share > 1.005 else f"{100 * self.share:.0f} % of perfect overlap"


@dataclass(frozen=True)
class Result:
    """A study's winner, or the best config so far where there is no entry."""

    key: CacheKey
    winner: Winner
    entry: Entry | None = None
    workload: Workload | None = None
    """Gives the order of fields and dimensions; found by its name if None."""

    @classmethod
    def of(cls, entry: Entry, workload: Workload | None = None) -> Result:
        return cls(entry.key, entry.winner, entry, workload)

    @property
    def regime(self) -> Regime:
        return Regime(self.key.regime)

    @property
    def latency(self) -> Latency:
        return self.winner.latency

    @property
    def microseconds(self) -> float:
        return self.latency.of(self.regime)

    @property
    def mode(self) -> str:
        return str(self.winner.config.get("mode", ""))

    @property
    def roofline(self) -> Roofline | None:
        return self.winner.roofline

    @cached_property
    def problem(self) -> dict[str, Any]:
        return fields_in_order(self.key, self.workload)

    @property
    def title(self) -> str:
        """Workload, problem and regime in one line."""
        return f"{dashed(self.key.workload)}  {asked_text(self.key, self.problem)}"

    @cached_property
    def config(self) -> Config:
        return config_in_order(self.key, self.winner.config, self.workload)

    @cached_property
    def speedups(self) -> tuple[Speedup, ...]:
        """The fastest baseline first."""
        return speedups(self.winner.baselines, self.latency, self.regime, interpreted=self.key.is_interpreted)

    @property
    def speedup(self) -> Speedup | None:
        """Against the fastest baseline."""
        return next(iter(self.speedups), None)

    @property
    def ratio(self) -> Ratio | None:
        """The fastest baseline's time over the winner's; None without a baseline, and under the interpreter."""
        return self.speedup.ratio if self.speedup is not None else None

    @property
    def is_faster(self) -> bool:
        """True for a winner that is faster than all baselines."""
        return self.ratio is not None and self.ratio.is_told and self.ratio.value > 1

    @property
    def unbeaten(self) -> str:
        """The baseline that is the winner, by its libraries; empty if a config of ours is."""
        return next((self.way(each.baseline) for each in self.speedups if each.is_winner), "")

    @property
    def speedup_text(self) -> str:
        """``1.30x``; empty without a ratio."""
        if self.ratio is None:
            return ""
        return f"{self.ratio.value:.2f}x" if self.ratio.is_told else NOT_TOLD_APART

    def way(self, baseline: str) -> str:
        """A baseline by its libraries: ``NCCL + cuBLAS in a CUDA graph``."""
        return baseline_name(self.key, baseline)

    @property
    def library(self) -> str:
        """The libraries of the baselines, eager or as a graph: ``NCCL + cuBLAS``."""
        return self.way("bsp eager") if libraries(self.key) else "the baselines"

    @cached_property
    def limit(self) -> Limit | None:
        """None under the interpreter."""
        name, parts = slowest(self.winner.limits), self.winner.limits
        if name is None or self.key.is_interpreted:
            return None
        shares = {part: ratio(latency, self.latency, Regime.GRAPH) for part, latency in parts.items()}
        return Limit(parts, shares, name, overlap_efficiency(self.latency, self.winner.baselines, parts))

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The winner against the fastest baseline of each regime."""
        return () if self.key.is_interpreted else verdicts(self.winner)

    @cached_property
    def routings(self) -> tuple[UnderRouting, ...]:
        """The winner under the routing that a mixture was tuned for, and under others that were measured."""
        return under_routings(self.key, self.winner)

    @property
    def copies(self) -> dict[str, str]:
        """The config to paste, by the place where it is needed."""
        return copies(self.key, self.winner.config, self.entry.origin if self.entry is not None else "", self.workload)

    @cached_property
    def stale(self) -> str:
        """Why it is not served on this machine; empty if it is."""
        return "" if self.entry is None else why_stale(self.key, self.entry.provenance)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values: the entry's, as in an exported file, and what follows from them."""
        entry, winner = self.entry, self.winner
        values = {**key_values(self.key), **schema.write(winner)} if entry is None else entry_values(entry)
        for name, each in winner.routings.items():
            taken = {
                "microseconds": each.latency.of(self.regime),
                "speedups": self._ratios(each.baselines, each.latency),
            }
            values["routings"][name] |= taken
        roofline_share = None if winner.roofline is None else winner.roofline.limit / winner.latency.median
        latencies = {"winner": winner.latency, **winner.baselines}
        here = {} if entry is None else {"study": entry.study_id, "imported_at": schema.write(entry.imported_at)}
        return {
            **values,
            **here,
            "problem": self.problem,
            "microseconds": self.microseconds,
            "speedups": self._ratios(winner.baselines, winner.latency),
            "in_regimes": {
                name: {regime.value: each.of(regime) for regime in Regime if each.knows(regime)}
                for name, each in latencies.items()
            },
            "slower_than": {each.regime.value: each.baseline for each in self.verdicts if each.ratio.is_less},
            "limit_share": self.limit.share if self.limit is not None else None,
            "overlap_efficiency": self.limit.efficiency if self.limit is not None else None,
            "roofline_share": roofline_share,
        }

    def _ratios(self, baselines: Mapping[str, Latency], ours: Latency) -> dict[str, Any]:
        """For programs, which know what interpreted times are worth."""
        return {name: schema.write(ratio(each, ours, self.regime)) for name, each in baselines.items()}


def short_problem(key: CacheKey) -> str:
    """A problem and its regime in one line, without fields that have their default."""
    kind = problem_type(key)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)} if kind is not None else {}
    fields = {name: value for name, value in fields_in_order(key).items() if value != defaults.get(name)}
    return asked_text(key, fields)


def why_stale(key: CacheKey, provenance: Provenance) -> str:
    """The reason in words; empty for a result that is served. For a decorated kernel or a workload that is not
    installed here only versions are known: sources are seen where it is launched.
    """
    if not key.is_kernel:
        with suppress(UnknownWorkload):
            return provenance.changes(installed_provenance(key.workload))
    return provenance.changes(dataclasses.replace(provenance, **versions()))
