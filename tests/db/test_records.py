"""Differences between keys and between provenances, field by field."""

from __future__ import annotations

import dataclasses

import pytest
from sample import KEY


def test_differences_descend_into_the_problem() -> None:
    other = dataclasses.replace(
        KEY, problem='{"dtype":"fp16","m":4096,"n":28672,"world_size":8,"z":true}', device="NVIDIA H100"
    )
    assert KEY.differences(other) == {
        "dtype": ("bf16", "fp16"),
        "k": ("8192", "absent"),
        "z": ("absent", "true"),
        "device": ("NVIDIA H200", "NVIDIA H100"),
    }


def test_the_world_size_is_one_difference() -> None:
    other = dataclasses.replace(KEY, problem=KEY.problem.replace('"world_size":8', '"world_size":4'), world_size=4)
    assert KEY.differences(other) == {"world_size": ("8", "4")}


@pytest.mark.parametrize("problem", ['{"n":1,"m":1}', "[1]", ""])
def test_a_problem_that_is_not_canonical_is_refused(problem: str) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(KEY, problem=problem)
