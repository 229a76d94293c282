"""Figures and how they are written: latencies with their spread, ratios with theirs, problems and configs as text."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.config import Config
from autotune.db.records import CacheKey
from autotune.environment import INTERPRETER
from autotune.outcome import Latency
from autotune.text import visible

INTERPRETER_NOTE = "These are times of Triton's interpreter on CPUs: they say nothing about GPUs."


@dataclass(frozen=True)
class Ratio:
    """A quotient of two measured times, with the uncertainty that both of their spreads bring."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"


def ratio(numerator: Latency, denominator: Latency) -> Ratio:
    """How many times longer the first takes."""
    value = numerator.median / denominator.median
    return Ratio(value, value * math.hypot(numerator.spread, denominator.spread))


def slowest(parts: Mapping[str, Latency]) -> str | None:
    """The name of the part that takes longest; None where there is none."""
    return max(parts, key=lambda name: parts[name].median, default=None)


def fastest(parts: Mapping[str, Latency]) -> str | None:
    """The name of the one that takes least time; None where there is none."""
    return min(parts, key=lambda name: parts[name].median, default=None)


def microseconds(value: float) -> str:
    """A time in µs, to four digits or so: 4.08, 408.2, 12345."""
    if value >= 10_000:
        return f"{value:.0f} µs"
    return f"{value:.1f} µs" if value >= 100 else f"{value:.2f} µs"


def latency_text(latency: Latency) -> str:
    """The median with its spread: ``408.2 µs ± 1.2 %``."""
    return f"{microseconds(latency.median)} ± {latency.spread:.1%}".replace("%", " %")


def problem_text(problem: Mapping[str, Any]) -> str:
    """A problem in one line, its sizes first; its world size is left out, for that stands beside the device."""
    names = [name for name in problem if name != "world_size"]
    names.sort(key=lambda name: not isinstance(problem[name], int) or isinstance(problem[name], bool))
    return " ".join(f"{plain(name)}={plain(problem[name])}" for name in names)


def config_text(config: Config) -> str:
    """A config in one line, as name=value pairs, its mode first."""
    names = sorted(config, key=lambda name: name != "mode")
    return " ".join(f"{plain(name)}={plain(config[name])}" for name in names)


def change_text(config: Config, winner: Config) -> str:
    """A config in one line, by what it changes in the winner where it is of the same mode."""
    if config == winner:
        return "the winner"
    if set(config) != set(winner) or config.get("mode") != winner.get("mode"):
        return config_text(config)
    changed = Config({name: value for name, value in config.items() if value != winner[name]})
    return f"the winner with {config_text(changed)}"


def plain(value: Any) -> str:
    """A value as JSON has it, strings without their quotes; in one line, nothing hidden."""
    return visible(value) if isinstance(value, str) else json.dumps(value)


def device_text(key: CacheKey) -> str:
    """What a key's measurements ran on."""
    if key.device == INTERPRETER:
        return f"{key.world_size} ranks under Triton's interpreter ({INTERPRETER})"
    return visible(f"{key.world_size} × {key.device} ({key.arch}, {key.interconnect})")


def dashed(name: str) -> str:
    """A name as the command line has it."""
    return visible(name).replace("_", "-")


def options_text(fields: Mapping[str, Any]) -> str:
    """A problem's fields as command-line options, quoted where a shell would take a value for something else."""
    words = []
    for name, value in fields.items():
        option = shlex.quote(dashed(name))
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words.append(f"--{option} {shlex.quote(plain(value))}")
    return " ".join(words)
