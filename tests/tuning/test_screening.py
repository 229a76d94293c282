"""Screening: what cannot work is known before a rank sees it, and a compiler that crashes takes nobody with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from planted import plant
from scripts import run_script

from autotune.config import Config
from autotune.machine import H100
from autotune.outcome import Outcome
from autotune.task import Task
from autotune.tuning.screening import Screen
from autotune.workloads import registry, workload

GOOD = Config({"mode": "pull", "group_m": 1})


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """Two workers that know the misbehaving workload."""
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(Path(__file__).parent / "compilers.py"))
    monkeypatch.setenv("AUTOTUNE_COMPILE_WORKERS", "2")
    registry._from_files.cache_clear()
    found = workload("compiling")
    with Screen(found, Task(found.problem_type(m=64, n=64, k=64, world_size=2), H100)) as made:
        yield made
    registry._from_files.cache_clear()


def test_each_way_to_fail_has_its_outcome_and_the_next_config_passes(screen: Screen) -> None:
    configs = {how: GOOD.replace(group_m=how) for how in (1, 2, 4, 8, 16, 32)}
    futures = {how: screen.submit(config) for how, config in configs.items()}
    verdicts = {how: screen.verdict(configs[how], futures[how]) for how in (1, 2, 4, 8, 16, 32)}
    assert verdicts[1] is None
    outcomes = {how: verdict.outcome for how, verdict in verdicts.items() if verdict is not None and verdict.reason}
    refused = Outcome.DID_NOT_COMPILE
    assert outcomes == {2: refused, 4: refused, 8: Outcome.OUT_OF_RESOURCES, 16: refused, 32: Outcome.INVALID}
    assert screen.verdict(GOOD, screen.submit(GOOD)) is None


SCRIPT = """
print("the script runs")
import sys
from autotune.config import Config
from autotune.machine import H100
from autotune.task import Task
from autotune.tuning.screening import Screen
from autotune.workloads import workload
found = workload("compiling")
with Screen(found, Task(found.problem_type(m=64, n=64, k=64, world_size=2), H100)) as screen:
    config = Config({"group_m": 1})
    print("verdict", screen.verdict(config, screen.submit(config)))
print(sys.modules["__main__"].__file__)
"""


def test_compilers_do_not_run_the_programs_script_again(screen: Screen, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_script(str(script), interpreted=False)
    assert done.stdout.splitlines() == ["the script runs", "verdict None", str(script)], done.stderr


def test_compilers_import_nothing_from_the_current_folder(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert screen.verdict(GOOD, screen.submit(GOOD)) is None
    assert not (tmp_path / "has run").exists()
