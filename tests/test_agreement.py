"""Agreement: one value, one error and one end of waiting on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_of_functions import run_ranks

from autotune.agreement import Agreement
from autotune.errors import RanksDisagree

ON_RANKS = str(Path(__file__).with_name("agreement_on_ranks.py"))
NOTE = "raised on rank {}, and so on every rank"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(ON_RANKS, "answers", 2, tmp_path_factory.mktemp("agreement"))


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("size", [2, 2]), ("gather", [[0, 10]] * 2), ("broadcast", [7, 7]), ("same", ["one word"] * 2),
        ("any", [[False, True, True]] * 2), ("afterwards", [[0, 1]] * 2),
        ("all or none", [0, 1]),  # what succeeds on all ranks stays each rank's own
        ("alone in its group", [[0, 1, [0]], [0, 1, [1]]]),
        ("one after the other", [[[1, 0]] * 5] * 2),  # listed ranks, in their order, whatever other groups they are in
    ],
)  # fmt: skip
def test_ranks_agree(ranks: list[dict[str, Any]], name: str, answers: list[Any]) -> None:
    assert [rank[name] for rank in ranks] == answers


def test_ranks_that_differ_are_told_what_each_says(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        kind, text, _ = rank["differ"]
        assert kind == "RanksDisagree" and "rank 0: 0; rank 1: 1" in text


@pytest.mark.parametrize(
    ("name", "error", "on"),
    [
        ("gather raises", ["ValueError", "a bad day"], 1),
        ("broadcast raises", ["KeyError", "'nothing'"], 0),
        ("fails before a barrier", ["ValueError", "on the way"], 1),
    ],
)
def test_an_error_is_raised_on_all_ranks(ranks: list[dict[str, Any]], name: str, error: list[str], on: int) -> None:
    assert [rank[name][:2] for rank in ranks] == [error] * 2
    assert ranks[1 - on][name][2] == [NOTE.format(on)] and ranks[on][name][2] == []


def test_an_error_that_cannot_travel_is_told_in_words(ranks: list[dict[str, Any]]) -> None:
    assert [rank["cannot travel"][:2] for rank in ranks] == [["GangError", "rank 1: TwoWords: two words"]] * 2


def test_a_failed_value_releases_the_others_and_stays(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["says that it failed"][0] == "Released" and ranks[1]["says that it failed"] == 1


def test_ranks_that_wait_in_vain_are_told_for_whom(tmp_path: Path) -> None:
    *waiting, _ = run_ranks(ON_RANKS, "late", 3, tmp_path)
    for kind, text, _ in [error for each in waiting for error in each]:
        assert kind == "GangError" and text.startswith(Agreement.left_alone) and "s rank 2 has not come" in text


def test_one_rank_alone_needs_no_group() -> None:
    alone = Agreement()
    assert alone.gather(lambda: 3) == [3] and alone.broadcast(lambda: 4) == 4 and alone.same(lambda: 5) == 5
    assert alone.all_or_none(lambda: 6) == 6 and (alone.rank, alone.world_size) == (0, 1)
    with pytest.raises(ZeroDivisionError):
        alone.all_or_none(lambda: 1 // 0)
    with pytest.raises(RanksDisagree, match="rank 0: a; rank 1: b"):
        alone.check_same(["a", "b"])
    alone.close()
