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


def test_the_slowest_rank_counts_and_rank_0_keeps_the_result(ranks: Answers) -> None:
    assert same(ranks, "slowest counts") == {"source": "tuned", "block": 128, "timings": [4, 5, 3], "right": True}
    bare = same(ranks, "a bare number counts")
    assert (bare["block"], bare["timings"]) == (128, [4, 5, 3]), "where do_bench gives one"
    assert same(ranks, "kept") == {"studies": 1, "world": 2}


@pytest.mark.parametrize("case", ["all warm", "rank 0 cold", "rank 1 cold"])
def test_a_warm_rank_and_a_cold_one_take_the_warm_ones_config_untuned(ranks: Answers, case: str) -> None:
    assert same(ranks, case) == {"source": "exact", "block": 128, "timings": [3], "right": True}


def test_an_exact_config_of_any_rank_comes_before_the_nearest_of_rank_0(ranks: Answers) -> None:
    found = same(ranks, "near on rank 0, exact on rank 1")
    assert (found["source"], found["block"], found["right"]) == ("exact", 64, True)


def test_the_nearest_of_any_rank_serves_all(ranks: Answers) -> None:
    found = same(ranks, "neighbour on rank 1")
    assert (found["source"], found["block"]) == ("nearest", 128)


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


def test_a_rank_that_cannot_read_its_database_goes_on_with_the_others(ranks: Answers) -> None:
    assert same(ranks, "rank 1 cannot read")["source"] == "exact"


def test_a_config_that_fails_on_one_rank_loses_on_all(ranks: Answers) -> None:
    answer = same(ranks, "rank 1 lacks resources")
    assert answer["timings"] == [float("inf"), 2, 3] and answer["block"] == 64


def test_one_offline_rank_keeps_all_from_tuning(ranks: Answers) -> None:
    assert same(ranks, "rank 1 offline")["source"] == "default"
    assert same(ranks, "rank 1 offline, told to tune")["error"] == "NotTuned"


def test_tuning_on_demand_is_collective_too(ranks: Answers) -> None:
    answer = same(ranks, "tuned anew")
    assert (answer["source"], answer["block"], answer["timings"]) == ("tuned", 64, [3, 2, 2])


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
