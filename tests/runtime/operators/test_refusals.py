"""A call that one rank cannot make is an error on all of them, within seconds: none is left waiting for that rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from calls import url
from ranks_of_functions import run_ranks
from refusals_on_ranks import FAULTS

from autotune.runtime.host_overhead import PUBLIC

ON_RANKS = str(Path(__file__).with_name("refusals_on_ranks.py"))
SECONDS = 200
"""For an error to reach all ranks, however slow the machine is: a third of what ranks wait for each other."""


@pytest.mark.parametrize(
    ("ranks", "gpu", "whole", "hosts"),
    [
        pytest.param(3, "", False, 1, id="three ranks"),
        pytest.param(3, "", False, 2, id="three ranks on two hosts"),
        pytest.param(2, "", True, 1, id="interpreter, all", marks=pytest.mark.slow),
        pytest.param(2, "each", True, 1, id="2 GPUs", marks=pytest.mark.gpu(2)),
        pytest.param(2, "each", False, 2, id="2 GPUs on two hosts", marks=pytest.mark.gpu(2)),
    ],
)
def test_a_call_that_one_rank_cannot_make_raises_its_error_on_all(
    tmp_path: Path, ranks: int, gpu: str, whole: bool, hosts: int
) -> None:
    names = sorted(PUBLIC)[:: 5 * hosts - 4]
    found = run_ranks(ON_RANKS, "refusals", ranks, tmp_path, gpu=gpu, argument=(url(tmp_path), names, whole, hosts))
    assert len(found[0]) == len(names) * (len(FAULTS) * 2 if whole else len(FAULTS) // 2 + 1) + 1
    for case in found[0]:
        told, seconds = zip(*(answers[case] for answers in found), strict=True)
        error = told[-1]
        assert error.startswith(("Invalid", "RanksDisagree", "TypeError")), (case, error)
        if "first call" in case:
            assert set(told) == {error}, case
        else:
            assert all(each.startswith("GangError") and error in each for each in told[:-1]), (case, told)
        assert max(seconds) < SECONDS, (case, seconds)
