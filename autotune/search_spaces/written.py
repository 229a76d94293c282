"""Configs written by hand: as JSON, or as ``mode=push block_m=128``; whole ones, or only what matters of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.config import Config, Value
from autotune.errors import InvalidConfig
from autotune.search_spaces.space import Space
from autotune.task import Task


def values_of(text: str, space: Space | None = None) -> dict[str, Value]:
    """The values that a text gives, as JSON or as words; those of words are texts where no ``space`` knows them. Raises
    InvalidConfig.
    """
    if text.lstrip().startswith("{"):
        return dict(Config.from_json(text))
    values: dict[str, Value] = {}
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not equals or name in values:
            raise InvalidConfig(f"{word!r}: write a config once as NAME=VALUE words, mode=push block_m=128, or as JSON")
        known = space.dimensions[name].values if space is not None and name in space.dimensions else ()
        values[name] = next((each for each in known if is_written(each, value)), value)
    return values


def is_written(value: Value, text: Value) -> bool:
    """True if a text, or a value from JSON, means a value."""
    return text in (value, value if isinstance(value, str) else json.dumps(value))


def completed(values: Mapping[str, Value], space: Space, task: Task[Any], known: Iterable[Config]) -> Config:
    """The config with these values; what they leave out is that of the first ``known`` one of their mode beside which
    they are valid. Raises InvalidConfig.
    """
    whole = space.ordered(Config(values))
    refused = space.violation(whole, task)
    if refused is None:
        return whole
    alike = [each for each in known if values.get("mode", each["mode"]) == each["mode"]]
    filled = [space.ordered(each.replace(**values)) for each in alike]
    reasons = [space.violation(each, task) for each in filled]
    if None in reasons:
        return filled[reasons.index(None)]
    raise InvalidConfig(f"config not valid for {task.problem.workload} {task.problem}: {next(iter(reasons), refused)}")
