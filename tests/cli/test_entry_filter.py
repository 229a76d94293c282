"""The values of a key's field that a command's word chooses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.cli.entry_filter import EntryFilter
from autotune.db import CacheKey


@pytest.mark.parametrize(
    ("word", "taken"),
    [
        ("true", [True]), ("1", [1]), ("1,2", [1, 2]), ("2..4", [2, 3, 4]), ("-1", [-1]), ("16", []),
        ("float16", ["torch.float16"]), ("torch.float16", ["torch.float16"]),
    ],
)  # fmt: skip
def test_a_word_means_the_values_that_are_written_so(word: str, taken: list[Any]) -> None:
    values = [True, False, 1, 2, 3, 4, -1, "torch.float16"]
    keys = [CacheKey("my_kernel", f'{{"x":{json.dumps(each)}}}', 8, "GPU", "sm_90", "nvlink") for each in values]
    chosen = EntryFilter("my_kernel", {"x": word})
    found = [value for value, key in zip(values, keys, strict=True) if chosen.takes(key)]
    assert json.dumps(found) == json.dumps(taken)
