"""Every public function on problems of every kind: right in every mode, and its warm call costs the host little."""

from __future__ import annotations

from pathlib import Path

import pytest
from calls import url
from ranks_of_functions import run_ranks
from two_ranks import EVERYWHERE, sampled

from autotune.workloads import workload
from autotune.workloads.user_files import BUILT_IN

ON_RANKS = str(Path(__file__).with_name("contract_on_ranks.py"))

ELSEWHERE = {"bsp", "warp_specialized"}
"""Modes that not every problem here has: one is the library's, one is for sm_90 and large tiles."""

MOST_CALLS = 17
"""Python functions that a warm call enters, one more than today: each costs the host, before every launch."""


@pytest.mark.parametrize("ranks", sampled(EVERYWHERE))
def test_every_problem_is_right_in_every_mode(ranks: tuple[str, bool], tmp_path: Path) -> None:
    gpu, sample = ranks
    for found in run_ranks(ON_RANKS, "every_mode", 2, tmp_path, gpu=gpu, argument=(url(tmp_path), sample)):
        assert all(" " not in mode for modes in found.values() for mode in modes), found
        for name in BUILT_IN:
            seen = {mode for problem, modes in found.items() if problem.split()[0] == name for mode in modes}
            assert seen | ELSEWHERE == ELSEWHERE.union(workload(name).space.modes), name


@pytest.mark.parametrize("ranks", sampled(EVERYWHERE))
def test_every_problem_is_right_in_a_compiled_graph(ranks: tuple[str, bool], tmp_path: Path) -> None:
    gpu, sample = ranks
    for found in run_ranks(ON_RANKS, "in_graphs", 2, tmp_path, gpu=gpu, argument=(url(tmp_path), sample)):
        assert not any(found.values()), found


def test_the_host_overhead_is_the_operator_s_call_without_its_launches(tmp_path: Path) -> None:
    (found,) = run_ranks(ON_RANKS, "host_overheads", 1, tmp_path, seconds=270)
    assert {each.split()[0] for each in found} == set(BUILT_IN)
    for problem, of in found.items():
        assert of["made"] == of["wanted"], problem
        assert of["called"] == of["problem"], problem
        assert of["taken"] == 0 and of["calls"] <= MOST_CALLS, (problem, of)


def test_what_no_operator_takes_is_refused_by_its_name(tmp_path: Path) -> None:
    file = str(Path(__file__).with_name("refused_on_ranks.py"))
    assert run_ranks(file, "refused", 2, tmp_path, argument=url(tmp_path)) == [[], []]
