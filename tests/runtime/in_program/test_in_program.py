"""``autotune.tune`` in a running program: one result on all ranks, the same error on all, nobody left waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_of_functions import run_ranks
from tuning_on_ranks import TIMEOUT

import autotune
from autotune.errors import InputError

ON_RANKS = str(Path(__file__).with_name("tuning_on_ranks.py"))

Answers = list[dict[str, Any]]


@pytest.fixture(scope="module")
def agreement(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("agreement")
    return run_ranks(ON_RANKS, "agreement", 2, folder, argument=str(folder))


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("errors")
    return run_ranks(ON_RANKS, "errors", 2, folder, argument=str(folder))


def same(ranks: Answers, name: str) -> Any:
    """The ranks' answer, which is one, but for the time it took."""
    answers = [rank[name] for rank in ranks]
    for answer in answers:
        if isinstance(answer, dict):
            answer.pop("seconds", None)
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def test_all_ranks_get_the_same_config_and_the_database_has_it(agreement: Answers) -> None:
    tuned = same(agreement, "tuned")
    assert tuned["source"] == "exact" and '"flaw":"none"' in tuned["config"] or '"mode":"bsp"' in tuned["config"]
    assert same(agreement, "looked up") == same(agreement, "again") == tuned
    assert (tuned["seed"], tuned["limits"]) == (0, ["sum"])


def test_another_regime_and_another_run_are_entries_of_their_own(agreement: Answers) -> None:
    graph, looked_up, anew, tuned = (
        same(agreement, name)["entry"] for name in ("in a graph", "looked up for a graph", "anew", "tuned")
    )
    assert graph == looked_up and len({graph, anew, tuned}) == 3 and same(agreement, "anew")["seed"] == 1


def test_it_gives_back_what_it_took(agreement: Answers) -> None:
    assert same(agreement, "given back") and same(agreement, "let go")


def test_ranks_wait_together_for_another_process_that_tunes_the_same(agreement: Answers) -> None:
    assert same(agreement, "waited")["source"] == "exact" and same(agreement, "by then the other was done")
    (told,), *others = (rank["told"] for rank in agreement)
    assert "width=512" in told, "once"
    assert not any(others), "by rank 0 alone"


def test_other_routings_are_set_up_and_then_the_problem_again(agreement: Answers) -> None:
    assert same(agreement, "with routings")["source"] == "exact"
    assert same(agreement, "set up") == [1024, 512, 1024]


def test_a_heap_is_as_large_as_the_user_says(agreement: Answers) -> None:
    assert same(agreement, "on a larger heap")["source"] == "exact"


def test_what_fails_on_one_rank_is_the_configs_outcome(agreement: Answers) -> None:
    outcomes = same(agreement, "outcomes")
    assert sum(outcomes.values()) == 7, "as many trials as were asked for"
    assert outcomes["measured"] >= 2
    assert outcomes["out of resources"] >= 2 and outcomes["timed out"] >= 1 and outcomes["wrong result"] >= 1
    assert all(reason.startswith("rank 1: ") for reason in same(agreement, "reasons"))


@pytest.mark.parametrize(
    ("case", "error", "told"),
    [
        ("other problems", "RanksDisagree", "width=257"), ("other seeds", "RanksDisagree", "seed=1"),
        ("other regimes", "RanksDisagree", "isolated"), ("other code", "RanksDisagree", "rank 1"),
        ("never right", "NotTuned", "rank 1"), ("no room", "NotTuned", "HeapExhausted"),
        ("no regime", "InputError", "warm"), ("too many ranks", "InputError", "world_size="),
        ("no effort", "InputError", "none"), ("rank 0 knows no workload", "UnknownWorkload", "none"),
        ("of no file", "InputError", "FILE:CLASS"), ("no database", "StoreError", ""),
        ("raises", "ZeroDivisionError", "planted"),
        ("loses its device", "GangError", "illegal memory access"),
    ],
)  # fmt: skip
def test_an_error_is_the_same_on_all_ranks(errors: Answers, case: str, error: str, told: str) -> None:
    answer = same(errors, case)
    assert answer["error"] == error and told in answer["told"]


def test_the_program_goes_on_after_errors(errors: Answers) -> None:
    assert "config" in same(errors, "afterwards")
    assert same(errors, "the program's own group") == len(errors)


def test_a_rank_that_is_not_back_in_time_is_an_error_on_all_that_wait(tmp_path: Path) -> None:
    answers = run_ranks(ON_RANKS, "left_alone", 2, tmp_path, argument=str(tmp_path))
    for how in ("hangs", "late"):
        alone, late = (answer[how] for answer in answers)
        assert alone["error"] == late["error"] == "GangError"
        assert alone["seconds"] < TIMEOUT + 120
    interrupted, other = (answer["is interrupted"] for answer in answers)
    assert interrupted["error"] == "KeyboardInterrupt" and other["error"] == "GangError"
    assert "config" in same(answers, "afterwards")


def test_kernels_are_tuned(tmp_path: Path) -> None:
    one, other = run_ranks(ON_RANKS, "kernels", 2, tmp_path, argument=str(tmp_path))
    assert one == other and one["source"] == "exact" and one["off"] < 0.01


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=pytest.mark.gpu(ranks, each=True)) for ranks in (2, 4, 8)])
def test_kernels_are_tuned_on_gpus(ranks: int, tmp_path: Path) -> None:
    found = run_ranks(ON_RANKS, "kernels_on_gpus", ranks, tmp_path, gpu=True, argument=str(tmp_path))
    left = [rank.pop("memory") for rank in found]
    assert max(left) < 1 << 20, left
    one, *others = found
    assert all(other == one for other in others) and one["source"] == "exact" and one["off"] < 0.01


def test_a_programs_settings_and_modes_change_nothing_and_stay(tmp_path: Path) -> None:
    ((*tuned, after),) = run_ranks(ON_RANKS, "in_a_programs_settings", 1, tmp_path, argument=str(tmp_path))
    assert [each.get("source") for each in tuned] == ["exact"] * 3, tuned
    assert after == {"still there": True}


def test_one_process_alone_is_told_what_to_do() -> None:
    with pytest.raises(InputError, match="init_process_group"):
        autotune.tune("gemm_all_reduce", autotune.GemmAllReduce(m=16, n=32, k=64, world_size=1))
