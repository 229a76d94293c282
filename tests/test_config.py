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
def test_the_canonical_form_leads_back(values: dict[str, Any]) -> None:
    config = Config(values)
    again = Config.from_json(config.to_json())
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
    assert config["tile"] == 64 and len(config) == 3 and list(config) == list(PUSH)
    with pytest.raises(KeyError):
        config["absent"]
    with pytest.raises(TypeError):
        config["tile"] = 128  # type: ignore[index]


@pytest.mark.parametrize("values", [None, [("mode", "push")], "mode=push"])
def test_only_a_mapping_becomes_one(values: Any) -> None:
    with pytest.raises(InvalidConfig, match=type(values).__name__):
        Config(values)


@pytest.mark.parametrize("name", ["mode", "tma"])
def test_integer_takes_no_words_and_no_flags(name: str) -> None:
    assert Config(PUSH).integer("tile") == 64
    with pytest.raises(InvalidConfig, match="integer"):
        Config(PUSH).integer(name)


@pytest.mark.parametrize("value", [None, 1.5, [1]])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidConfig, match="mode="):
        Config({"mode": value})


@pytest.mark.parametrize(
    "text",
    [
        "", "[" * 100_000, '["push"]', '{"tile": 1.5}', '{"mode": "push", "tile": 4, "tile": 8}', '{"tile": NaN}',
    ],
)  # fmt: skip
def test_texts_that_are_no_config(text: str) -> None:
    with pytest.raises(InvalidConfig):
        Config.from_json(text)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_copies_and_pickles_are_equal(duplicate: Any) -> None:
    assert duplicate(Config(PUSH)) == Config(PUSH)


LATENCY = Latency(100.0, 98.0, 103.0, 0.4, 15)


def test_spread_is_half_the_distance_of_the_percentiles() -> None:
    assert LATENCY.spread == pytest.approx(0.025)


@pytest.mark.parametrize("outcome", Outcome)
def test_a_latency_comes_with_measured_and_only_with_it(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match=str(outcome)):
        Evaluation(outcome, latency=None if outcome is Outcome.MEASURED else LATENCY)


def test_ways_take_turns_until_the_longest_is_at_its_end() -> None:
    a, b, c, d = (Config({"n": n}) for n in range(4))
    assert in_turns([[a, b, c], [], [d]]) == [a, d, b, c]
