"""Which heap GPUs get, by setting, installation and hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_of_functions import run_ranks

ON_RANKS = str(Path(__file__).parent / "providers_on_ranks.py")
TWO_HOSTS = [{"GROUP_RANK": "0"}, {"GROUP_RANK": "1"}]
GROUP_WITHIN_A_HOST = [{"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}] * 2
NO_IRIS = [{"IRIS": "missing"}] * 2


def of_all(settings: list[dict[str, str]], heap: str) -> list[dict[str, str]]:
    return [each | {"AUTOTUNE_HEAP": heap} for each in settings]


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ([{}] * 2, "iris", ""),
        (of_all([{}] * 2, "torch"), "torch", ""),
        (TWO_HOSTS, "torch", "host"),
        (of_all(TWO_HOSTS, "torch"), "torch", ""),
        (GROUP_WITHIN_A_HOST, "torch", "host"),
        (NO_IRIS, "torch", "tokenspeed-iris"),
    ],
)
def test_all_ranks_take_the_same_heap_and_one_says_why(
    settings: list[dict[str, str]], name: str, reason: str, tmp_path: Path
) -> None:
    first, second = run_ranks(ON_RANKS, "choice", 2, tmp_path, argument=settings)
    assert first["names"] == second["names"] == [name] * 2
    assert len(first["said"]) == bool(reason) and not second["said"]
    assert not reason or reason in first["said"][0]


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        (of_all(TWO_HOSTS, "iris"), "HeapError", "AUTOTUNE_HEAP"),
        (of_all(NO_IRIS, "iris"), "HeapError", "tokenspeed-iris"),
        ([{"AUTOTUNE_HEAP": "torch"}, {}], "RanksDisagree", "rank 1"),
        ([{}, {"AUTOTUNE_HEAP": "cuda"}], "InputError", "iris or torch"),
    ],
)
def test_what_cannot_be_is_an_error_on_all_ranks(
    settings: list[dict[str, str]], error: str, told: str, tmp_path: Path
) -> None:
    for found in run_ranks(ON_RANKS, "choice", 2, tmp_path, argument=settings):
        assert found["error"] == error and told in found["text"]
