"""Configs: immutable, equal whatever the order, with one canonical text; 1 is not true."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from autotune.config import Config, in_turns
from autotune.errors import InvalidConfig
from autotune.outcome import Evaluation, Latency, Outcome

PUSH = {"mode": "push", "tile": 64, "tma": True}


def test_the_order_does_not_matter() -> None:
    one, other = Config(PUSH), Config(dict(reversed(PUSH.items())))
    assert one == other and hash(one) == hash(other) and one.to_json() == other.to_json()
    assert one.to_json() == '{"mode":"push","tile":64,"tma":true}'


@pytest.mark.parametrize("values", [PUSH, {}, {"mode": 'ünïcode "quoted" \n'}, {"tile": 2**70, "low": -3}])
@pytest.mark.parametrize(
    "duplicate",
    [
        lambda config: Config.from_json(config.to_json()), lambda config: pickle.loads(pickle.dumps(config)),
        copy.copy, copy.deepcopy,
    ],
)  # fmt: skip
def test_the_canonical_form_a_pickle_and_a_copy_lead_back(values: dict[str, Any], duplicate: Any) -> None:
    config = Config(values)
    again = duplicate(config)
    assert again == config and dict(again) == values
    assert {name: type(value) for name, value in again.items()} == {n: type(v) for n, v in values.items()}


def test_one_is_not_true() -> None:
    assert Config({"tma": 1}) != Config({"tma": True})
    assert Config({"tma": 0}) != Config({"tma": False})
    assert len({Config({"tma": 1}), Config({"tma": True}), Config({"tma": "1"})}) == 3


def test_it_is_a_mapping_of_its_own() -> None:
    values = dict(PUSH)
    config = Config(values)
    values["tile"] = 128
    assert config["tile"] == config.integer("tile") == 64 and len(config) == 3 and list(config) == list(PUSH)
    with pytest.raises(KeyError):
        config["absent"]
    with pytest.raises(TypeError):
        config["tile"] = 128  # type: ignore[index]


@pytest.mark.parametrize(
    ("make", "given", "told"),
    [
        (Config, None, "NoneType"), (Config, [("mode", "push")], "list"), (Config, "mode=push", "str"),
        *((Config, {"mode": value}, "mode=") for value in (None, 1.5, [1])),
        *((Config(PUSH).integer, name, "integer") for name in ("mode", "tma")),
        *((Config.from_json, text, None) for text in ("", "[" * 100_000, '["push"]', '{"tile": 1.5}', '{"tile": NaN}')),
        (Config.from_json, '{"mode": "push", "tile": 4, "tile": 8}', None),
    ],
)  # fmt: skip
def test_what_is_no_config_and_no_integer_of_one_is_refused(make: Any, given: Any, told: str | None) -> None:
    with pytest.raises(InvalidConfig, match=told):
        make(given)


LATENCY = Latency(100.0, 98.0, 103.0, 0.4, 15)


@pytest.mark.parametrize("outcome", Outcome)
def test_a_latency_comes_with_measured_and_only_with_it(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match=str(outcome)):
        Evaluation(outcome, latency=None if outcome is Outcome.MEASURED else LATENCY)


def test_ways_take_turns_until_the_longest_is_at_its_end() -> None:
    a, b, c, d = (Config({"n": n}) for n in range(4))
    assert in_turns([[a, b, c], [], [d]]) == [a, d, b, c]
