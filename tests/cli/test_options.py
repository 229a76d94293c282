"""Words, integers and databases of the command line, for completion and for messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.cli.options import Request, completing, masked
from autotune.errors import InputError
from autotune.machine import H100
from autotune.workloads import workload


def test_a_word_is_completed_by_its_beginning() -> None:
    assert completing(lambda: ["push", "pull", "bsp"])("p") == ["push", "pull"]


def test_a_password_is_not_shown_and_other_databases_stay_as_they_were_given() -> None:
    assert "secret" not in masked("postgresql://me:secret@host/db") and "host" in masked(
        "postgresql://me:secret@host/db"
    )
    for db in ("some/cache.db", "sqlite:///some/cache.db"):
        assert masked(db) == db


@pytest.mark.parametrize("ranks", [2, 3])
def test_fields_left_out_are_those_of_the_default_problem_of_these_ranks(ranks: int) -> None:
    found = workload("all_gather_gemm")
    default = found.default_problem(H100, 2)
    given: dict[str, Any] = {"m": 384, "n": 192, "k": 384, "world_size": ranks}
    problem = Request(found, given).problem(H100)
    assert problem.as_dict() == {**default.as_dict(), **given}
    if ranks == 2:
        assert Request(found, {"world_size": 2}).problem(H100) == default


def test_a_problem_that_this_device_runs_in_no_mode_is_refused() -> None:
    fp8 = {"dtype": "fp8", "scales": "row", "b_order": "nk", "world_size": 2}
    request = Request(workload("all_gather_gemm"), fp8)
    request.problem(H100)
    with pytest.raises(InputError, match="on sm_80: .*fp8"):
        request.problem(replace(H100, arch="sm_80"))
