"""The keys that a command's words choose: by device, by fields that a problem's text leaves out, flags and numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.cli.entry_filter import EntryFilter
from autotune.db import CacheKey


def key(name: str = "my_kernel", device: str = "NVIDIA H200", **fields: Any) -> CacheKey:
    return CacheKey(name, json.dumps(fields, sort_keys=True, separators=(",", ":")), 8, device, "sm_90", "nvlink")


def test_a_device_is_named_in_full() -> None:
    assert EntryFilter(device="NVIDIA H200").takes(key())
    assert not EntryFilter(device="NVIDIA H200").takes(key(device="NVIDIA H200 NVL"))
    assert not EntryFilter(device="H200").takes(key())


@pytest.mark.parametrize(
    ("word", "taken"),
    [
        ("true", [True]), ("1", [1]), ("1,2", [1, 2]), ("2..4", [2, 3, 4]), ("-1", [-1]), ("16", []),
        ("float16", ["torch.float16"]), ("torch.float16", ["torch.float16"]),
    ],
)  # fmt: skip
def test_a_word_means_the_values_that_are_written_so(word: str, taken: list[Any]) -> None:
    values = [True, False, 1, 2, 3, 4, -1, "torch.float16"]
    found = [value for value in values if EntryFilter("my_kernel", {"x": word}).takes(key(x=value))]
    assert json.dumps(found) == json.dumps(taken)
