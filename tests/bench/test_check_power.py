"""The mutants: their table fits the kernels, and a few of them are found out."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import check_power
import mutants
import pytest
from mutant_cases import CASES

from autotune.config import Config
from autotune.machine import INTERPRETED, Machine, machine
from autotune.task import Task
from autotune.workloads import workload

BENCH = Path(__file__).parents[2] / "bench"
H200 = Machine("cuda", "NVIDIA H200", "sm_90", 2, 132, 227 * 1024, 50 << 20, "nvlink")

ONE = ("ar ll: words of every launch are alike",)
"""Found by a wrong result, in calls back to back: one that is found by a wait in vain took six times as long."""

FIVE = (
    *ONE, "ar separate ll: one slot", "ar sentinel: a zero goes as an empty word", "ag ragged: the last of K is lost",
    "rs push: no bias",
)  # fmt: skip


def parts(text: str) -> set[str]:
    return set(text.split("\n\n\n"))


def test_every_mutant_can_be_made() -> None:
    for mutant in mutants.MUTANTS:
        assert mutant.case in CASES
        changed = parts(check_power.applied(mutant)) - parts((check_power.PACKAGE / mutant.file).read_text())
        assert changed
        for part in changed:
            ast.parse(part)


@pytest.mark.parametrize("gpu", [False, True], ids=["interpreter", "gpu"])
@pytest.mark.parametrize("name", CASES)
def test_cases_are_valid(name: str, gpu: bool) -> None:
    case, here = (CASES[name].on_gpu(), H200) if gpu else (CASES[name], INTERPRETED)
    if not gpu and all(mutant.hardware for mutant in mutants.MUTANTS if mutant.case == name):
        pytest.skip("for GPUs alone")
    found = workload(case.workload)
    problem = found.problem_type(**case.problem, world_size=check_power.RANKS)
    assert found.space.violation(Config(case.config), Task(problem, here)) is None


@pytest.mark.skipif(not machine().is_interpreter, reason="on GPUs: bench/check_power.py --gpu")
@pytest.mark.parametrize("few", [ONE, pytest.param(FIVE, marks=pytest.mark.slow)], ids=["one", "five"])
def test_a_few_mutants_are_found_out_and_unbroken_kernels_are_not(tmp_path: Path, few: tuple[str, ...]) -> None:
    out = tmp_path / "mutants.jsonl"
    only = "|".join(f"^{re.escape(name)}$" for name in few)
    command = [sys.executable, str(BENCH / "check_power.py"), "--only", only, "--jobs", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ""})
    rows = {row["name"]: row for row in map(json.loads, out.read_text().splitlines())}
    broken = {name: row for name, row in rows.items() if not name.endswith(check_power.SOUND)}
    assert set(broken) == set(few)
    assert {name for name, row in broken.items() if row["by"] != check_power.EVALUATION} == set(), done.stdout
    assert {row["by"] for name, row in rows.items() if name not in broken} == {check_power.NOTHING}, done.stdout
    assert f"{len(few)} mutants: {len(few)} caught (100.0%)" in done.stdout
