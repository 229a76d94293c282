"""Configs by size: which of several entries and values are in the file, and which config a size gets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Winner
from autotune.errors import InputError
from autotune.outcome import Latency
from autotune.sharing.by_size import to_sizes

TODAY = Provenance("source", "space", "3.7", "0", "2.13", "")
STALE = dataclasses.replace(TODAY, triton="3.6")


def entry(
    provenance: Provenance = TODAY, device: str = "NVIDIA H200", config: Any = None, workload: str = "moe",
    regime: str = "graph", **fields: Any,
) -> Entry:  # fmt: skip
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    winner = Winner(Config({"mode": "kernel", "BLOCK": 64, **(config or {})}), Latency(1.0, 1.0, 1.0, 0.0, 1))
    key = CacheKey(workload, text, 1, device, "sm_90", "nvlink", regime)
    return Entry(key, provenance, winner, 1, datetime(2026, 1, 1, tzinfo=UTC), 1, 0, 1)


@pytest.fixture
def file(tmp_path: Path) -> Callable[[Any], Path]:
    def write(values: Any) -> Path:
        (tmp_path / "configs.json").write_text(json.dumps(values))
        return tmp_path / "configs.json"

    return write


def test_a_config_lacks_what_every_launch_has_anyway_and_what_it_has_not() -> None:
    usual = {"num_ctas": 1, "GROUP": "none", "num_warps": 4}
    text, left_out = to_sizes([entry(n=1, config=usual), entry(n=2, config={"mode": "pull", "num_ctas": 2})])
    assert json.loads(text) == {
        "triton_version": "3.7", "1": {"BLOCK": 64, "num_warps": 4}, "2": {"BLOCK": 64, "mode": "pull", "num_ctas": 2},
    }  # fmt: skip
    assert left_out == 0


def test_entries_of_other_versions_than_the_newest_ones_are_left_out_and_counted() -> None:
    text, left_out = to_sizes([entry(n=3), entry(STALE, n=1), entry(STALE, n=2), entry(n=1)])
    assert list(json.loads(text)) == ["triton_version", "1", "3"] and left_out == 2, "the smallest first"
    text, left_out = to_sizes([entry(n=1, config={"BLOCK": 32}), entry(n=1), entry(n=2)], by="n")
    assert json.loads(text)["1"] == {"BLOCK": 32} and left_out == 0, "of two of one size the newest"
    other = dataclasses.replace(TODAY, source_hash="other")
    text, left_out = to_sizes([entry(other, n=1, config={"BLOCK": 16}), entry(n=1), entry(n=2)])
    assert json.loads(text) == {"triton_version": "3.7", "1": {"BLOCK": 16}} and left_out == 2


def test_the_size_is_the_integer_in_which_they_differ_or_the_one_that_is_named() -> None:
    both = [entry(M=1, n=64), entry(M=2, n=64)]
    assert list(json.loads(to_sizes(both)[0])) == ["triton_version", "1", "2"]
    assert list(json.loads(to_sizes(both[:1])[0])) == ["triton_version", "1"], "M, for want of a difference"
    assert list(json.loads(to_sizes(both[:1], by="n")[0])) == ["triton_version", "64"]
    assert list(json.loads(to_sizes([entry(rows=8, dtype="bf16", even=True)])[0])) == ["triton_version", "8"]


@pytest.mark.parametrize(
    ("entries", "by", "told"),
    [
        ([entry(k=1, n=64)], None, "--by: k, n$"), ([entry(even=True, n=1)], "even", "even"),
        ([entry(dtype="bf16", n=1)], "dtype", "dtype"), ([entry(n=1, k=1), entry(n=2, k=2)], "n", "--k"),
        ([entry(n=1), entry(n=2, device="MI300X")], None, "--device"),
        ([entry(n=1), entry(n=2, regime="isolated")], None, "--regime"),
        ([entry(n=1), entry(workload="gated_gemm", n=1)], None, "gated-gemm, moe"),
    ],
)  # fmt: skip
def test_entries_without_one_size_are_refused(entries: list[Entry], by: str | None, told: str) -> None:
    with pytest.raises(InputError, match=told):
        to_sizes(entries, by)


def test_a_size_gets_the_config_of_the_nearest_and_of_two_the_smaller_ones(file: Callable[[Any], Path]) -> None:
    read = autotune.configs_by_size(file({"16": {"BLOCK": 2}, "4": {"BLOCK": 1}, "triton_version": "3.7"}))
    assert [read.nearest(size)["BLOCK"] for size in (1, 9, 10, 11, 99)] == [1, 1, 1, 2, 2] and list(read) == [4, 16]
    read.nearest(4)["BLOCK"] = 7
    assert read[4] == {"BLOCK": 1}, "what it gives is the caller's own"


@pytest.mark.parametrize(
    "values",
    [
        {"triton_version": "3.7"}, {"0": {"BLOCK": 1}}, {str(2**63): {"BLOCK": 1}}, {"1": {"BLOCK": 1.5}}, [],
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_file(file: Callable[[Any], Path], values: Any) -> None:
    with pytest.raises(InputError, match=r"configs\.json"):
        autotune.configs_by_size(file(values))
