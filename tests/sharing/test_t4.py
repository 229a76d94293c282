"""T4, schema version 1.0.0, as Kernel Tuner publishes it: the fields that it requires, the types of all we write."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from autotune.config import Config
from autotune.db import Entry, TrialRecord
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.sharing import to_t4

REQUIRED = {"configuration": dict, "times": dict, "invalidity": str, "correctness": (int, float)}
OPTIONAL = {"timestamp": str, "objectives": list, "measurements": list}
INVALIDITY = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}

LATENCY = Latency(408.25, 401.5, 419.125, 3.5, 50, (405.0, 408.25))
SECONDS = {"compile": 1.5, "check": 0.125, "measure": 0.25, "total": 2.0}


def trials() -> list[TrialRecord]:
    """One of each outcome, the measured one first."""
    measured = Evaluation(Outcome.MEASURED, latency=LATENCY, error=1e-3, seconds=SECONDS)
    failed = [Evaluation(outcome, "why") for outcome in Outcome if outcome is not Outcome.MEASURED]
    moment = datetime(2026, 3, 4, tzinfo=UTC)
    return [
        TrialRecord(Config({"tile": number, "mode": "push"}), each, created_at=moment)
        for number, each in enumerate([measured, *failed])
    ]


@pytest.fixture
def written(make_entry: Callable[..., Entry]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(to_t4(make_entry(), trials()))
    return values


def test_every_result_has_what_the_schema_requires_and_nothing_of_another_type(written: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", written["schema_version"])
    assert len(written["results"]) == len(Outcome)
    for result in written["results"]:
        assert set(REQUIRED) <= set(result) <= set(REQUIRED | OPTIONAL)
        assert all(isinstance(result[name], kind) for name, kind in (REQUIRED | OPTIONAL).items())
        assert result["invalidity"] in INVALIDITY
        assert all(isinstance(value, int | float) for value in result["times"].values())
        for measurement in result["measurements"]:
            assert isinstance(measurement["name"], str) and isinstance(measurement["unit"], str)
            assert isinstance(measurement["value"], int | float | str | list)
        assert {each["name"] for each in result["measurements"]} >= set(result["objectives"]) or (
            result["invalidity"] != "correct" and result["measurements"] == []
        )


def test_the_metadata_is_what_its_schema_says(written: dict[str, Any]) -> None:
    metadata = written["metadata"]
    assert isinstance(metadata["hardware"]["hardware_description"], list)
    assert isinstance(metadata["environment"]["device_query"], dict)
    assert all(re.fullmatch(r"\w+==\S+", each) for each in metadata["environment"]["requirements"])
    assert metadata["problem"]["m"] == 4096


def test_values_come_through(written: dict[str, Any]) -> None:
    result = written["results"][0]
    assert result["configuration"] == {"mode": "push", "tile": 0}
    assert (result["invalidity"], result["correctness"]) == ("correct", 1)
    assert result["times"] == {"compilation_time": 1500.0, "validation": 125.0, "benchmark": 250.0, "total": 2000.0}
    measured = {each["name"]: (each["value"], each["unit"]) for each in result["measurements"]}
    assert measured["time"] == (0.40825, "ms") and measured["time_rank_0"] == (0.405, "ms")
    assert measured["iterations"] == (50, "")


def test_each_figure_is_its_own_and_none_is_made_up(make_entry: Callable[..., Entry]) -> None:
    entry = make_entry(world_size=4)
    latency = Latency(408.25, 401.5, 419.125, 3.5, 50, (405.0, 408.25), host=0.0, isolated=431.0)
    measured = [TrialRecord(Config({"mode": "push"}), Evaluation(Outcome.MEASURED, latency=each))
                for each in (latency, dataclasses.replace(latency, host=None, isolated=None))]  # fmt: skip
    entry = dataclasses.replace(entry, provenance=dataclasses.replace(entry.provenance, driver="580.1"))
    values = json.loads(to_t4(entry, measured))
    device = values["metadata"]["hardware"]["hardware_description"]
    assert device == [{"device": "NVIDIA H200", "arch": "sm_90", "devices": 4, "interconnect": "nvlink"}]
    assert values["metadata"]["environment"]["device_query"] == {"driver": "580.1"}
    assert [result["timestamp"] for result in values["results"]] == ["", ""], "of a time that is not known"
    figures, fewer = ({each["name"]: each["value"] for each in result["measurements"]} for result in values["results"])
    assert figures == {
        "time": 0.40825, "time_percentile_20": 0.4015, "time_percentile_80": 0.419125, "time_skew": 0.0035,
        "time_rank_0": 0.405, "time_rank_1": 0.40825, "time_host": 0.0, "time_isolated": 0.431, "iterations": 50,
    }  # fmt: skip
    assert figures.keys() - fewer.keys() == {"time_host", "time_isolated"}


def test_every_outcome_has_its_name(written: dict[str, Any]) -> None:
    names = dict(zip((each.evaluation.outcome for each in trials()), written["results"], strict=True))
    assert {outcome: result["invalidity"] for outcome, result in names.items()} == {
        Outcome.MEASURED: "correct",
        Outcome.INVALID: "constraints",
        Outcome.DID_NOT_COMPILE: "compile",
        Outcome.OUT_OF_RESOURCES: "constraints",
        Outcome.WRONG_RESULT: "correctness",
        Outcome.TIMED_OUT: "timeout",
        Outcome.CRASHED: "runtime",
    }
    assert {result["correctness"] for outcome, result in names.items() if outcome is not Outcome.MEASURED} == {0}


def test_an_unknown_version_is_left_out(make_entry: Callable[..., Entry]) -> None:
    entry = make_entry()
    entry = dataclasses.replace(entry, provenance=dataclasses.replace(entry.provenance, iris="", torch="2.11"))
    requirements = json.loads(to_t4(entry, []))["metadata"]["environment"]["requirements"]
    assert "torch==2.11" in requirements and not any(each.startswith("iris") for each in requirements)
