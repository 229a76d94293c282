"""A foreign launcher: right with every kind of row, and the table that its tuning writes is one that it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from every_mode import check_all, few, on_cpu, whole
from scripts import run_script

import autotune
from autotune.machine import machine
from autotune.task import Task
from autotune.workloads import workload

EXAMPLE = Path(__file__).parents[2] / "docs/examples/launcher_table.py"
FOUND = workload(f"{EXAMPLE}:TunedLauncher")


@pytest.mark.parametrize(("world_size", "elements"), [(2, 1000), whole(3, 1000), whole(2, 1)])
def test_both_shots_are_right(world_size: int, elements: int) -> None:
    problem = FOUND.problem_type(elements=elements, world_size=world_size)  # type: ignore[call-arg]
    small = FOUND.space.restricted({"block": [128, 256], "num_warps": [4]})
    check_all(
        FOUND, problem, few(problem, small.enumerate(Task(problem, on_cpu())), 4), {"one_shot", "two_shot"}, calls=3
    )


@pytest.mark.gpu(2)
@pytest.mark.parametrize("elements", [4096, 1_000_003])
def test_both_shots_are_right_on_gpus(elements: int) -> None:
    problem = FOUND.problem_type(elements=elements, world_size=2)  # type: ignore[call-arg]
    check_all(
        FOUND, problem, few(problem, FOUND.space.enumerate(Task(problem, machine())), 16), {"one_shot", "two_shot"}
    )


def test_it_writes_the_launchers_table_from_what_it_has_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "tuned.db"))
    file, settings = tmp_path / "table.json", {"AUTOTUNE_DB": str(tmp_path / "tuned.db")}
    done = run_script(str(EXAMPLE), "--sizes", "64,256", "--trials", "1", str(file), ranks=2, settings=settings)
    assert done.returncode == 0, done.stderr
    table = json.loads(file.read_text())
    assert [*table] == ["64", "256"]
    for elements, row in table.items():
        found = autotune.lookup(FOUND, FOUND.problem_type(elements=int(elements), world_size=2))  # type: ignore[call-arg]
        assert found.source == "exact"
        shots = {"one_shot": 1, "two_shot": 2}[str(found.config["mode"])]
        assert row == {"shots": shots, **{name: value for name, value in found.config.items() if name != "mode"}}
