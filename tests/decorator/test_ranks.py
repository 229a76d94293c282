"""Ranks choose together: one config on all, the slowest counts, the same error on all, and nobody is left waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_of_functions import run_ranks

ON_RANKS = str(Path(__file__).with_name("on_ranks.py"))

Answers = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("agreement")
    return run_ranks(ON_RANKS, "agreement", 2, folder, argument=str(folder))


def same(ranks: Answers, name: str) -> dict[str, Any]:
    """Both ranks' answer, which is one."""
    one, other = (rank[name] for rank in ranks)
    assert one == other
    return one


WARM = {"source": "exact", "block": 128, "timings": [3], "right": True}


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ("slowest counts", {"source": "tuned", "block": 128, "timings": [4, 5, 3], "right": True}),
        ("a bare number counts", {"block": 128, "timings": [4, 5, 3]}),
        ("kept", {"studies": 1, "world": 2}), ("all warm", WARM), ("rank 0 cold", WARM), ("rank 1 cold", WARM),
        ("near on rank 0, exact on rank 1", {"source": "exact", "block": 64, "right": True}),
        ("neighbour on rank 1", {"source": "nearest", "block": 128}), ("rank 1 cannot read", {"source": "exact"}),
        ("rank 1 lacks resources", {"timings": [float("inf"), 2, 3], "block": 64}),
        ("rank 1 offline", {"source": "default"}), ("rank 1 offline, told to tune", {"error": "NotTuned"}),
        ("tuned anew", {"source": "tuned", "block": 64, "timings": [3, 2, 2]}),
    ],
)  # fmt: skip
def test_ranks_choose_together(ranks: Answers, case: str, wanted: dict[str, Any]) -> None:
    found = same(ranks, case)
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("other keys", ("n=200", "n=100")),
        ("other lists", ("rank 0", "rank 1")),
        ("other pruning", ("BLOCK=128",)),
        ("bench on rank 0", ("a do_bench of its own", "our bench")),
    ],
)
def test_ranks_that_disagree_all_raise(ranks: Answers, case: str, told: tuple[str, ...]) -> None:
    answer = same(ranks, case)
    assert answer["error"] == "RanksDisagree" and 'ranks="each"' in answer["told"]
    assert all(part in answer["told"] for part in told)


def test_an_exception_on_one_rank_is_the_same_on_all(ranks: Answers) -> None:
    calm, raised = (rank["rank 1 raises"] for rank in ranks)
    assert calm["error"] == raised["error"] == "ValueError" and calm["told"] == raised["told"] == "a bad day"
    assert len(calm["notes"]) == 1 and "rank 1" in calm["notes"][0]
    answer = same(ranks, "rank 1 raises what cannot travel")
    assert answer["error"] == "GangError" and "very picky" in answer["told"]
    assert same(ranks, "afterwards")["block"] == 64


@pytest.mark.parametrize("case", ["each for itself", "a group of one"])
def test_ranks_may_choose_each_for_itself(ranks: Answers, case: str) -> None:
    assert [(rank[case]["source"], rank[case]["block"]) for rank in ranks] == [("tuned", 32), ("tuned", 128)]


def test_a_rank_outside_of_the_group_is_told_so_and_stays_in_step(ranks: Answers) -> None:
    inside, outside = (rank["a group without rank 1"] for rank in ranks)
    named = same(ranks, "a group of all")
    assert inside["source"] == "tuned" and outside["error"] == "InputError"
    assert named["block"] == 128 and named["right"]


def test_our_bench_runs_a_kernel_equally_often_on_all_ranks(tmp_path: Path) -> None:
    quick, slow = run_ranks(ON_RANKS, "repeats", 2, tmp_path, argument=str(tmp_path))
    assert quick == slow, "calls by config, winner and latency"
    assert all(count >= 7 for name, count in quick["calls"].items() if name != "reset") and quick["calls"]["reset"] == 1
    one, other = quick["by rank"]
    assert other > 20_000 and one > 0, "rank 1 sleeps for 20 ms a call"


@pytest.mark.parametrize("how", ["first", "later"])
def test_a_rank_that_launches_alone_is_told_so(tmp_path: Path, how: str) -> None:
    answer, _ = run_ranks(ON_RANKS, "left_alone", 2, tmp_path, argument=how)
    assert answer["error"] == "GangError" and 'ranks="each"' in answer["told"]


def test_a_rank_that_is_interrupted_leaves_none_waiting(tmp_path: Path) -> None:
    other, interrupted = run_ranks(ON_RANKS, "interrupted", 2, tmp_path, argument=str(tmp_path), seconds=270)
    assert [answer["error"] for answer in interrupted] == ["KeyboardInterrupt", "GangError"]
    assert all(answer["error"] == "GangError" for answer in other)
