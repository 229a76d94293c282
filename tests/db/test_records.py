"""Differences between keys and between provenances, field by field."""

from __future__ import annotations

import dataclasses
import json

import pytest

from autotune.db import CacheKey, Provenance
from autotune.db.records import columns, parted


def test_equal_keys_have_no_differences(key: CacheKey, provenance: Provenance) -> None:
    assert key.differences(key) == {}
    assert provenance.differences(provenance) == {}


def test_differences_descend_into_the_problem(key: CacheKey) -> None:
    other = dataclasses.replace(
        key, problem='{"dtype":"fp16","m":4096,"n":28672,"world_size":8,"z":true}', device="NVIDIA H100"
    )
    assert key.differences(other) == {
        "dtype": ("bf16", "fp16"),
        "k": ("8192", "absent"),
        "z": ("absent", "true"),
        "device": ("NVIDIA H200", "NVIDIA H100"),
    }


def test_the_world_size_is_one_difference(key: CacheKey) -> None:
    other = dataclasses.replace(key, problem=key.problem.replace('"world_size":8', '"world_size":4'), world_size=4)
    assert key.differences(other) == {"world_size": ("8", "4")}


@pytest.mark.parametrize(
    ("changes", "device", "alike"),
    [
        ({}, "NVIDIA H200", True),
        ({"m": 8192}, "NVIDIA H200", True),
        ({"m": 8192}, "NVIDIA H100", False),
        ({"n": 14336}, "NVIDIA H200", False),
        ({"x": 1}, "NVIDIA H200", False),
    ],
)
def test_keys_are_equal_besides_what_they_may_differ_in(
    key: CacheKey, changes: dict[str, int], device: str, alike: bool
) -> None:
    problem = json.dumps(json.loads(key.problem) | changes, sort_keys=True, separators=(",", ":"))
    other = dataclasses.replace(key, problem=problem, device=device)
    [(size, besides), (there, others)] = (parted(columns(each), ["m"]) for each in (key, other))
    assert (besides == others) is alike
    assert (*size, *there) == (4096, changes.get("m", 4096))
    assert (set(key.differences(other)) <= {"m"}) is alike


def test_differences_of_provenance_name_the_versions(provenance: Provenance) -> None:
    other = dataclasses.replace(provenance, triton="3.8.0", driver="")
    assert provenance.differences(other) == {"triton": ("3.6.0", "3.8.0"), "driver": ("580.1", "")}


@pytest.mark.parametrize("problem", ['{"n":1,"m":1}', '{"m": 1}', "[1]", "m=1", ""])
def test_a_problem_that_is_not_canonical_is_refused(key: CacheKey, problem: str) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(key, problem=problem)
