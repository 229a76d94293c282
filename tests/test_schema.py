"""Records as JSON values and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from fakes import latency_of

from autotune import schema
from autotune.config import Config
from autotune.db import Winner
from autotune.outcome import Latency
from autotune.schema import Mistakes, Within

WINNER = Winner(Config({"mode": "push"}), latency_of(1.5, 2, host=3.0), {"bsp": latency_of(2.0)})


@dataclass(frozen=True)
class Point:
    x: Annotated[int, Within(0, 9)]
    names: tuple[Annotated[str, Within(1)], ...] = ()
    inner: dict[str, float | None] = field(default_factory=dict)


def test_a_record_comes_back() -> None:
    for record in (WINNER, Point(3, ("a", "b"), {"c": None, "d": 1.0})):
        assert schema.read(type(record), json.loads(json.dumps(schema.write(record)))) == record


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([], ""), ({}, "x"), ({"x": 10}, "x"), ({"x": True}, "x"), ({"x": 1, "names": ["a", ""]}, "names.1"),
        ({"x": 1, "inner": {"a": float("nan")}}, "inner.a"), ({"x": 1, "inner": {"a": 10**400}}, "inner.a"),
        ({"x": "1", "y": 2}, "y: unknown field; x"),
    ],
)  # fmt: skip
def test_every_mistake_is_named(values: Any, told: str) -> None:
    with pytest.raises(Mistakes) as caught:
        schema.read(Point, values)
    assert str(caught.value).startswith(f"{told}: ")


def test_a_field_of_a_later_version_is_left_out_where_it_may_be() -> None:
    values = schema.write(WINNER)
    values["latency"]["later"] = values["later"] = 1
    assert schema.read(Winner, values, newer=True) == WINNER
    with pytest.raises(Mistakes, match=r"^later: unknown field; latency.later: unknown field$"):
        schema.read(Winner, values)


def test_no_number_is_written_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="not a number"):
        schema.write(Latency(float("nan"), 1.0, 1.0, 0.0, 1))
