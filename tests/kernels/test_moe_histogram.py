"""A recorded popularity of experts: from a file to a problem's key, and to the tokens that are drawn by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune
from autotune.errors import InputError
from autotune.kernels.moe.histogram import given_histogram, histogram_text, shares_of
from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import drawn_routing


def file(folder: Path, text: str) -> Path:
    path = folder / "counts.txt"
    path.write_text(text)
    return path


def problem(counts: list[float], **fields: Any) -> ExpertsProblem:
    given = {"tokens": 4000, "hidden": 8, "experts": len(counts), "top_k": 1, "world_size": 1, **fields}
    return ExpertsProblem(**given, routing="recorded", histogram=histogram_text(counts))


@pytest.mark.parametrize("text", ["10 0 30 20", "1,0,3,2\n", "[100, 0, 300, 200]", "0.1\n0\n0.3\n0.2\n"])
def test_files_in_proportion_are_one_histogram(tmp_path: Path, text: str) -> None:
    found = autotune.recorded_histogram(file(tmp_path, text))
    assert found == histogram_text([1, 0, 3, 2]) and given_histogram(found) == found
    assert shares_of(found) == [432, 0, 1295, 863]
    assert found != histogram_text([1, 0, 3, 1])
    assert shares_of(histogram_text([1, 0, 100_000])) == [1, 0, 1295], "chosen at all"


@pytest.mark.parametrize(
    ("text", "told"),
    [("1 two", "two"), ("1 nan", "nan"), ("1 1e999", "1e999"), ('{"a": 1}', "number"), ("1 " * 600_000, "1048576")],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path: Path, text: str, told: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(InputError) as refused:
        autotune.recorded_histogram(path)
    assert told in str(refused.value) and str(path) in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, told in (("none", "No such file"), (".", "Is a directory"), ("binary", "not text"), ("\0", "not text")):
        with pytest.raises(InputError, match=told):
            autotune.recorded_histogram(tmp_path / name)


def test_draws_follow_the_counts_of_each_expert() -> None:
    ids = drawn_routing(problem([1, 0, 5, 2]), torch.device("cpu"), 3).ids
    shares = torch.bincount(ids.flatten().long(), minlength=4) / 4000
    assert torch.allclose(shares, torch.tensor([1 / 8, 0, 5 / 8, 2 / 8]), atol=0.03)


def test_experts_that_were_never_chosen_come_last() -> None:
    ids = drawn_routing(problem([1, 0, 1, 0], top_k=3, tokens=50), torch.device("cpu"), 3).ids
    assert {frozenset(each) & {0, 2} for each in ids[0].tolist()} == {frozenset({0, 2})}
    assert {each for token in ids[0].tolist() for each in token} == {0, 1, 2, 3}


def test_the_largest_number_of_experts_makes_a_short_key() -> None:
    """An index of PostgreSQL takes 2,700 bytes."""
    made = problem([float(each) for each in range(1024)])
    assert given_histogram(made.histogram) == made.histogram
    assert len(made.to_json()) < 2300 and len(str(made)) < 200
    assert ExpertsProblem.from_dict(json.loads(made.to_json())) == made
