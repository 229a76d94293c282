"""Frozen dataclasses as JSON values and back: types and bounds are those of the fields, and every mistake is named.

A field that is added to a record is written and read everywhere at once: in the database, in exported files, in
recordings, with ``--json``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, TypeVar

from autotune.config import Config
from autotune.errors import AutotuneError

T = TypeVar("T")

UNKNOWN = "unknown field"


@dataclass(frozen=True)
class Within:
    """Annotates a number, or a text or mapping by its length: the least and the most that is allowed."""

    low: float
    high: float = math.inf

    def refusal(self, value: Any) -> str:
        """What is wrong with a value; empty if nothing is."""
        size = value if isinstance(value, int | float) else len(value)
        if self.low <= size <= self.high:
            return ""
        what = "" if size is value else f"{size} long, "
        ends = f"{self.low:g} to {self.high:g}" if math.isfinite(self.high) else f"{self.low:g} or more"
        return f"{what}allowed: {ends}"


@dataclass(frozen=True)
class Mistake:
    place: tuple[str | int, ...]
    said: str
    got: Any = ...
    """Not told if there is none, as of a field that is missing."""

    def __str__(self) -> str:
        if self.got is ...:
            return f"{'.'.join(map(str, self.place))}: {self.said}"
        shown = repr(self.got)[:60] if isinstance(self.got, str | int | float | None) else type(self.got).__name__
        return f"{'.'.join(map(str, self.place))}: {self.said}; got {shown}"


class Mistakes(ValueError):
    def __init__(self, found: Sequence[Mistake]) -> None:
        super().__init__("; ".join(map(str, found)))
        self.found = found


def write(value: Any) -> Any:
    """A record as JSON values. Raises ValueError for NaN and infinities."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: write(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: write(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [write(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.value if isinstance(value, Enum) else value


def read(kind: type[T], values: Any, *, newer: bool = False) -> T:
    """Raises Mistakes. ``newer``: a later version may have added fields, which are left out."""
    found: list[Mistake] = []
    record = _reader(typing.cast(Any, kind))(values, (), found)
    if mistakes := [each for each in found if not (newer and each.said == UNKNOWN)]:
        raise Mistakes(mistakes)
    return typing.cast(T, record)


Read = Callable[[Any, tuple[str | int, ...], list[Mistake]], Any]
"""Reads a value at a place; adds what is wrong with it to the list."""

EXPECTED = {str: "text", bool: "true or false", int: "an integer", float: "a number"}


@functools.cache
def _reader(kind: Any) -> Read:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value, place, found: value
    if origin is typing.Annotated:
        return _bounded(_reader(args[0]), [each for each in args[1:] if isinstance(each, Within)])
    if origin in (typing.Union, types.UnionType):
        return _either(args)
    if origin is Literal:
        return _checked(lambda value: value in args, f"allowed: {', '.join(map(str, args))}")
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_reader(args[1]))
    if origin is not None and issubclass(origin, Sequence):
        return _sequence(tuple if origin is tuple else list, _reader(args[0]))
    if kind is Config:
        return _config
    if kind is datetime:
        return _moment
    if dataclasses.is_dataclass(kind):
        return _record(kind)
    if hasattr(kind, "_fields"):
        return _named_tuple(kind)
    return _scalar(kind)


def _checked(test: Callable[[Any], bool], said: str) -> Read:
    def check(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
        if not test(value):
            found.append(Mistake(place, said, value))
        return value

    return check


def _scalar(kind: type) -> Read:
    said = f"expected {EXPECTED[kind]}"
    if kind is not float:
        return _checked(lambda value: type(value) is kind, said)

    def number(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
        try:
            if type(value) in (int, float) and math.isfinite(as_float := float(value)):
                return as_float
        except OverflowError:
            pass
        found.append(Mistake(place, said, value))
        return value

    return number


def _bounded(inner: Read, bounds: Sequence[Within]) -> Read:
    def bounded(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
        before = len(found)
        result = inner(value, place, found)
        if len(found) == before:
            found += [Mistake(place, said, value) for each in bounds if (said := each.refusal(result))]
        return result

    return bounded


def _either(kinds: Sequence[Any]) -> Read:
    """``X | None``, or one of several scalars."""
    plain = [kind for kind in kinds if kind is not type(None)]
    if len(plain) > 1:
        said = f"expected {', '.join(EXPECTED[kind] for kind in plain)}"
        return _checked(lambda value: type(value) in kinds and value == value, said)
    inner = _reader(plain[0])
    return lambda value, place, found: None if value is None else inner(value, place, found)


def _mapping(inner: Read) -> Read:
    def mapping(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
        if isinstance(value, dict):
            return {name: inner(each, (*place, name), found) for name, each in value.items()}
        found.append(Mistake(place, "expected an object", value))
        return value

    return mapping


def _sequence(kind: type, inner: Read) -> Read:
    def sequence(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
        if isinstance(value, list | tuple):
            return kind(inner(each, (*place, number), found) for number, each in enumerate(value))
        found.append(Mistake(place, "expected an array", value))
        return value

    return sequence


def _named_tuple(kind: Any) -> Read:
    """An array, in the order of the fields."""
    readers = [_reader(each) for each in typing.get_type_hints(kind, include_extras=True).values()]

    def named(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
        if isinstance(value, list | tuple) and len(value) == len(readers):
            pairs = enumerate(zip(readers, value, strict=True))
            return kind(*(read(each, (*place, number), found) for number, (read, each) in pairs))
        found.append(Mistake(place, f"expected an array of {len(readers)}", value))
        return value

    return named


def _config(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
    try:
        return Config(value)
    except AutotuneError as error:
        found.append(Mistake(place, str(error), value))
        return value


def _moment(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        pass
    found.append(Mistake(place, "expected a date and a time with their zone", value))
    return value


def _record(kind: Any) -> Read:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {each.name: (_reader(hints[each.name]), _is_optional(each)) for each in dataclasses.fields(kind)}

    def record(value: Any, place: tuple[str | int, ...], found: list[Mistake]) -> Any:
        if not isinstance(value, dict):
            found.append(Mistake(place, "expected an object", value))
            return value
        found += [Mistake((*place, name), UNKNOWN) for name in value if name not in fields]
        before, values = len(found), {}
        for name, (inner, optional) in fields.items():
            if name in value:
                values[name] = inner(value[name], (*place, name), found)
            elif not optional:
                found.append(Mistake((*place, name), "missing"))
        if any(each.said != UNKNOWN for each in found[before:]):
            return value
        try:
            return kind(**values)
        except ValueError as error:
            found.append(Mistake(place, str(error), value))
            return value

    return record


def _is_optional(of: dataclasses.Field[Any]) -> bool:
    return of.default is not dataclasses.MISSING or of.default_factory is not dataclasses.MISSING


def json_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The kind as JSON Schema; records go into ``definitions``."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    inner = functools.partial(json_schema, definitions=definitions)
    if kind is Any:
        return {}
    if origin is typing.Annotated:
        found = inner(args[0])
        ends = {"string": "Length", "object": "Properties"}.get(found.get("type", ""), "imum")
        for each in (each for each in args[1:] if isinstance(each, Within)):
            found |= {f"min{ends}": each.low} | ({f"max{ends}": each.high} if math.isfinite(each.high) else {})
        return found
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [inner(each) for each in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if kind is Config or (origin is not None and issubclass(origin, Mapping)):
        values = inner(args[1]) if args else {"type": ["string", "integer", "boolean"]}
        return {"type": "object", "additionalProperties": values}
    if origin is not None and issubclass(origin, Sequence):
        return {"type": "array", "items": inner(args[0])}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        definitions.setdefault(kind.__name__, record_schema(kind, definitions))
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if kind is datetime:
        return {"type": "string", "format": "date-time"}
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return {"type": names[kind]}


def record_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    return {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "additionalProperties": False,
        "properties": {each.name: json_schema(hints[each.name], definitions) for each in fields},
        "required": [each.name for each in fields if not _is_optional(each)],
    }
