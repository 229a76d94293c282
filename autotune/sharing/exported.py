"""The file of tuned configs: its schema, writing, and reading with every mistake named.

Made for review: sorted, one line per value, no time of writing. Two exports of the same entries are the same bytes, and
a diff shows the changes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from autotune.db import CacheKey, Entry, Provenance
from autotune.db.values import entry_of, entry_schema, entry_values
from autotune.errors import InputError
from autotune.outcome import Latency
from autotune.schema import Mistake, Mistakes
from autotune.text import HIDDEN, json_text, named_once, visible

LOG = logging.getLogger("autotune")

FORMAT: Final = "iris-autotune/configs"
VERSION: Final = 1

YEARS = (2000, 2999)
"""First and last plausible year of tuning."""

LONGEST_TEXT = 1000

MOST_SHOWN = 10
"""Mistakes in one message at most."""


def write(entries: Iterable[Entry]) -> str:
    """The file's text; it does not depend on the order of the entries.

    An entry that a reader would refuse is left out, with a warning.
    """
    blocks = [block for entry in sorted(entries, key=_order) if (block := _block(entry)) is not None]
    return json_text({"format": FORMAT, "version": VERSION, "entries": blocks}) + "\n"


def read(text: str) -> list[Entry]:
    """The entries in a file's text. Raises InputError that names each mistake's entry and field."""
    blocks, mistakes = _blocks(text), []
    entries: list[Entry] = []
    seen: dict[tuple[CacheKey, Provenance], int] = {}
    for number, block in enumerate(blocks, 1):
        try:
            entry = _entry(block)
        except Mistakes as error:
            mistakes += [visible(f"{_named(number, block)}{each}") for each in error.found]
            continue
        first = seen.setdefault((entry.key, entry.provenance), number)
        if first != number:
            raise InputError(f"entries {first} and {number} have the same problem, machine and provenance; keep one")
        entries.append(entry)
    if mistakes:
        more = [f"and {len(mistakes) - MOST_SHOWN} more"] if len(mistakes) > MOST_SHOWN else []
        raise InputError("\n".join(["not a valid file of configs:", *mistakes[:MOST_SHOWN], *more]))
    return entries


def schema() -> str:
    """The format as JSON Schema, as in docs/configs.schema.json."""
    definitions: dict[str, Any] = {}
    definitions["Entry"] = entry_schema(definitions)
    entries = {"type": "array", "items": {"$ref": "#/$defs/Entry"}}
    return json_text({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{FORMAT.replace('/', ':')}:{VERSION}",
        "$defs": definitions,
        "type": "object",
        "additionalProperties": False,
        "properties": {"format": {"const": FORMAT}, "version": {"const": VERSION}, "entries": entries},
        "required": ["format", "version", "entries"],
    }) + "\n"  # fmt: skip


def _block(entry: Entry) -> dict[str, Any] | None:
    try:
        block = entry_values(entry)
        _entry(block)
    except ValueError as error:
        told = error.found[0] if isinstance(error, Mistakes) else error
        LOG.warning("study %d is left out: %s", entry.study_id, visible(str(told)))
        return None
    return block


def _entry(block: Any) -> Entry:
    """Raises Mistakes, also for what a database would take and a file may not have."""
    found = list(_hidden(block, ()))
    try:
        entry = entry_of(block)
    except Mistakes as error:
        raise Mistakes([*found, *error.found]) from error
    if not YEARS[0] <= entry.finished_at.year <= YEARS[1]:
        said = f"year {entry.finished_at.year} is not between {YEARS[0]} and {YEARS[1]}"
        found.append(Mistake(("finished_at",), said, block["finished_at"]))
    found += _fields(entry.key)
    winner, ranks = entry.winner, entry.key.world_size
    parts: dict[tuple[str, ...], Latency] = {("latency",): winner.latency}
    parts |= {("baselines", name): each for name, each in winner.baselines.items()}
    parts |= {("limits", name): each for name, each in winner.limits.items()}
    for routing, routed in winner.routings.items():
        parts["routings", routing, "latency"] = routed.latency
        parts |= {("routings", routing, "baselines", name): each for name, each in routed.baselines.items()}
    for place, latency in parts.items():
        if len(latency.by_rank) not in (0, ranks):
            found.append(Mistake((*place, "by_rank"), f"{len(latency.by_rank)} times, world_size is {ranks}"))
    if found:
        raise Mistakes(found)
    return entry


def _fields(key: CacheKey) -> Iterator[Mistake]:
    """Only a decorated kernel's key arguments may be null or lists."""
    for name, value in key.fields.items():
        if not isinstance(value, str | int | float) and (isinstance(value, dict) or not key.is_kernel):
            yield Mistake(("problem", name), "expected text, a number or a flag", value)


def _hidden(value: Any, place: tuple[str | int, ...]) -> Iterator[Mistake]:
    """Text with hidden characters, and numbers that no column holds."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _hidden(name, place)
            yield from _hidden(each, (*place, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _hidden(each, (*place, number))
    elif isinstance(value, str):
        if (found := HIDDEN.search(value)) is not None:
            yield Mistake(place, f"holds {visible(found[0])}, a hidden character", value)
        if len(value) > LONGEST_TEXT:
            yield Mistake(place, f"longer than {LONGEST_TEXT} characters", value)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield Mistake(place, "not a 64-bit integer", str(value)[:60])
    elif isinstance(value, float) and not math.isfinite(value):
        yield Mistake(place, "not a finite number", value)


def _blocks(text: str) -> list[Any]:
    """The entries' JSON values, format and version checked. Raises InputError."""
    try:
        values = json.loads(text, object_pairs_hook=named_once)
    except InputError as error:
        raise InputError(f"an object in it {error}; keep one") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}; use a file written by tune export") from error
    if isinstance(values, dict) and values and all(name.isdigit() for name in values if name != "triton_version"):
        raise InputError(
            "configs by size, as vLLM keeps them, have no latencies and are no results; a decorated kernel takes them "
            "as candidates or defaults: autotune.configs_by_size(FILE)"
        )
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(
            f'not a file of configs: expected an object with "format": "{FORMAT}", as tune export writes it'
        )
    if values.get("version") != VERSION:
        raise InputError(
            f"version {values.get('version')!r} of the format; this iris-autotune reads version {VERSION}: "
            "export again with this version"
        )
    if values.keys() != {"format", "version", "entries"} or not isinstance(values["entries"], list):
        raise InputError("not a valid file of configs: expected format, version and an array of entries")
    return values["entries"]


def _named(number: int, block: Any) -> str:
    if not isinstance(block, dict):
        return f"entry {number}"
    return f"entry {number} ({block.get('workload')} {json.dumps(block.get('problem'))[:100]}), "


def _order(entry: Entry) -> tuple[Any, ...]:
    key = entry.key
    problem: Mapping[str, Any] = key.fields
    fields = [
        (name, str(type(v)), v if isinstance(v, int | float | str) else json.dumps(v)) for name, v in problem.items()
    ]
    return (
        key.workload, key.device, key.arch, key.interconnect, key.world_size, fields, key.regime,
        dataclasses.astuple(entry.provenance),
    )  # fmt: skip
