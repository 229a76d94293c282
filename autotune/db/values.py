"""An entry as JSON values: one layout for exported files and for everything that prints JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from autotune import schema
from autotune.db.records import CacheKey, Entry, Winner

PARTS = {"key": CacheKey, "winner": Winner}
"""The fields of an entry whose own fields stand beside the others."""

HERE = ("study_id", "imported_at")
"""Fields that another database has otherwise."""

BY_NAME = ("config", "baselines", "limits", "routings", "beside")
"""Fields whose values are in the order of their names, so that two exports of an entry are the same bytes."""

FIELDS = {
    **{name: tuple(each.name for each in dataclasses.fields(kind)) for name, kind in PARTS.items()},
    "": tuple(each.name for each in dataclasses.fields(Entry) if each.name not in (*PARTS, *HERE)),
}


def key_values(key: CacheKey) -> dict[str, Any]:
    return {**schema.write(key), "problem": key.fields}


def entry_values(entry: Entry) -> dict[str, Any]:
    """Raises ValueError for a latency that is not a number."""
    values = schema.write(entry)
    winner = {name: dict(sorted(each.items())) if name in BY_NAME else each for name, each in values["winner"].items()}
    return {**key_values(entry.key), **winner, **{name: values[name] for name in FIELDS[""]}}


def entry_of(values: Any) -> Entry:
    """The entry of no study. Raises ``schema.Mistakes``."""
    if not isinstance(values, dict):
        raise schema.Mistakes([schema.Mistake((), "expected an object", values)])
    nested: dict[str, Any] = {"study_id": 0, **{name: {} for name in PARTS}}
    home = {name: part for part, names in FIELDS.items() for name in names}
    found = [schema.Mistake((name,), schema.UNKNOWN) for name in values if name not in home]
    for name in (each for each in values if each in home):
        nested.get(home[name], nested)[name] = values[name]
    problem = nested["key"].get("problem", {})
    if isinstance(problem, dict):
        nested["key"]["problem"] = json.dumps(problem, sort_keys=True, separators=(",", ":"))
    try:
        entry = schema.read(Entry, nested)
    except schema.Mistakes as error:
        for each in error.found:
            place = each.place[1:] if each.place[:1] in {(part,) for part in PARTS} else each.place
            found.append(dataclasses.replace(each, place=place))
    if found:
        raise schema.Mistakes(found)
    return entry


def entry_schema(definitions: dict[str, Any]) -> dict[str, Any]:
    """An entry's values as JSON Schema."""
    parts = [schema.record_schema(kind, definitions) for kind in (*PARTS.values(), Entry)]
    properties = {name: each for part in parts for name, each in part["properties"].items()}
    required = [name for part in parts for name in part["required"]]
    known = [name for names in FIELDS.values() for name in names]
    properties["problem"] = {"type": "object", "description": "the problem's fields by name"}
    return {
        **parts[-1],
        "properties": {name: properties[name] for name in known},
        "required": [name for name in known if name in required],
    }
