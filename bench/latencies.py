"""The tuner's latencies in a regime, as its objects have them and as its JSON has them."""

from __future__ import annotations

from typing import Any

REGIMES = ("graph", "pipelined", "isolated")

WINNER = "winner"
"""Beside names of baselines and of rivals: the tuned config."""


def time_in(latency: Any, regime: str) -> float | None:
    """Microseconds: the device's; pipelined the host's where these are more; isolated None unless it was measured."""
    if regime == "isolated":
        return getattr(latency, "isolated", None)
    host = getattr(latency, "host", None) or 0.0
    return float(max(latency.median, host) if regime == "pipelined" else latency.median)


def microseconds(row: dict[str, Any]) -> dict[str, float]:
    """Microseconds of the winner and of each baseline of an entry, in the regime that it was tuned for."""
    medians = {WINNER: row["latency"]["median"]}
    medians |= {name: latency["median"] for name, latency in row["baselines"].items()}
    known = row.get("in_regimes", {})
    return {name: known.get(name, {}).get(row.get("regime"), median) for name, median in medians.items()}


def speedup(row: dict[str, Any]) -> dict[str, float]:
    """Value and error of an entry's speedup over its fastest baseline."""
    return dict(min(row["speedups"].values(), key=lambda each: each["value"]))
