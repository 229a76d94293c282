"""A config: one point of a workload's joint search space, frozen and JSON-able."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.errors import InputError, InvalidConfig
from autotune.text import named_once

Value = str | int | bool


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""``json.dumps`` would make an encoder for each of the many configs that a search looks at."""


class Config(Mapping[str, Value]):
    """An immutable mapping of dimension names to values, with a canonical JSON form.

    Two configs with the same values are equal, hash alike and print alike, whatever order they were written in.
    A config carries only the dimensions that its mode has; reading another one raises ``KeyError``.
    """

    __slots__ = ("_text", "_values")

    def __init__(self, values: Mapping[str, Value]) -> None:
        """Copy ``values``; raises InvalidConfig unless all are strings, integers or flags."""
        if not isinstance(values, Mapping):
            raise InvalidConfig(
                f'config is a {type(values).__name__}; give a dict of dimensions, as in Config({{"mode": "push", …}})'
            )
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, (str, int, bool)):
                raise InvalidConfig(f"config value {name}={value!r}: allowed: strings, integers, true and false")
        self._values = dict(values)
        self._text = _canonical(self._values)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Parse the canonical form; raises InvalidConfig with the text's type or error."""
        try:
            values: Any = json.loads(text, object_pairs_hook=named_once)
        except InputError as error:
            raise InvalidConfig(f"config {error}; name each dimension once") from error
        except (ValueError, RecursionError) as error:
            raise InvalidConfig(f'config is not JSON ({error}); write it as {{"mode": "push", …}}') from error
        if not isinstance(values, dict):
            raise InvalidConfig(f"config is a JSON {type(values).__name__}; expected an object of dimension names")
        return cls(values)

    def to_json(self) -> str:
        """The canonical form: sorted keys, no spaces."""
        return self._text

    def replace(self, **changes: Value) -> Config:
        return Config({**self._values, **changes})

    def integer(self, name: str) -> int:
        """The value of an integer dimension; raises InvalidConfig for another type."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidConfig(f"{name}={value!r}: must be an integer")
        return value

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._text == other._text

    def __repr__(self) -> str:
        return "Config(" + ", ".join(f"{name}={value}" for name, value in self._values.items()) + ")"


def in_turns(ways: Iterable[Sequence[Config]]) -> list[Config]:
    """The first config of each, then each one's second, and so on: a short search has seen some of all."""
    rounds = itertools.zip_longest(*ways)
    return [config for each in rounds for config in each if config is not None]
