"""Words, integers and databases of the command line, for completion and for messages."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Bench

from autotune.cli.options import Request, completing, masked
from autotune.errors import InputError
from autotune.machine import H100, INTERPRETED, Machine
from autotune.workloads import names, workload
from autotune.workloads.faces import face


def test_a_word_is_completed_by_its_beginning() -> None:
    assert completing(lambda: ["push", "pull", "bsp"])("p") == ["push", "pull"]


def test_a_password_is_not_shown_and_other_databases_stay_as_they_were_given() -> None:
    assert "secret" not in masked("postgresql://me:secret@host/db") and "host" in masked(
        "postgresql://me:secret@host/db"
    )
    for db in ("some/cache.db", "sqlite:///some/cache.db"):
        assert masked(db) == db


def test_a_hint_repeats_what_was_given_without_the_password_of_its_database() -> None:
    request = Request(workload("all_reduce_norm"), {"m": 16, "in_place": True})
    assert request.command("taxes") == "tune taxes all-reduce-norm --m 16 --in-place"
    assert request.command() == "tune all-reduce-norm --m 16 --in-place"
    told = request.command(db="postgresql://me:secret@host/db")
    assert told.startswith("tune all-reduce-norm --m 16 --in-place --db postgresql") and "me:***@host/db" in told


@pytest.mark.parametrize("ranks", [2, 3])
def test_fields_left_out_are_those_of_the_default_problem_of_these_ranks(ranks: int) -> None:
    found = workload("all_gather_gemm")
    default = found.default_problem(H100, 2)
    given: dict[str, Any] = {"m": 384, "n": 192, "k": 384, "world_size": ranks}
    problem = Request(found, given).problem(H100)
    assert problem.as_dict() == {**default.as_dict(), **given}
    if ranks == 2:
        assert Request(found, {"world_size": 2}).problem(H100) == default


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("machine", [H100, INTERPRETED], ids=lambda machine: machine.arch)
def test_help_shows_the_values_that_are_used(name: str, machine: Machine) -> None:
    """Without a look at the machine: that would take seconds."""
    problem = Request(workload(name), {}).problem(machine)
    shown = face(name).defaults(pytest.fail, pytest.fail)
    assert shown.items() <= {field.name: getattr(problem, field.name) for field in fields(problem)}.items()


def test_help_of_an_own_operator_shows_its_own_default_problem(laptop: Bench, tmp_path: Path) -> None:
    toy = (Path(__file__).parent / "toy_workload.py").read_text()
    file = tmp_path / "own.py"
    file.write_text(toy.replace("width=1024", 'width=1024, dtype="fp32"').replace('"""Adds up', '__doc__ = None; """'))
    page = " ".join(laptop.tune("run", f"{file}:ToyWorkload", "--help").stdout.replace("│", "").split())
    assert "[default: (fp32)]" in page and "(bf16)" not in page and "ToyProblem(" not in page


def test_a_problem_that_this_device_runs_in_no_mode_is_refused() -> None:
    fp8 = {"dtype": "fp8", "scales": "row", "b_order": "nk", "world_size": 2}
    request = Request(workload("all_gather_gemm"), fp8)
    request.problem(H100)
    with pytest.raises(InputError, match="on sm_80: .*fp8"):
        request.problem(replace(H100, arch="sm_80"))


def test_several_sizes_lead_to_the_grid(gpus: Bench) -> None:
    for sizes in ("16,32", "16..32"):
        told = " ".join(gpus.tune("all-gather-gemm", "--m", sizes).stderr.replace("│", "").split())
        assert "several sizes are tuned by: tune grid WORKLOAD" in told
