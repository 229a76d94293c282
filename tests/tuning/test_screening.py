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
    with Screen(found, found.problem_type(m=64, n=64, k=64, world_size=2), H100) as made:
        yield made
    registry._from_files.cache_clear()


def test_each_way_to_fail_has_its_outcome_and_the_next_config_passes(screen: Screen) -> None:
    configs = {how: GOOD.replace(group_m=how) for how in (1, 2, 4, 8, 16, 32)}
    futures = {how: screen.submit(config) for how, config in configs.items()}
    verdicts = {how: screen.verdict(configs[how], futures[how]) for how in (1, 2, 4, 8, 16, 32)}
    assert verdicts[1] is None
    refused, crashed, oversized = verdicts[2], verdicts[4], verdicts[8]
    assert refused is not None and refused.outcome is Outcome.DID_NOT_COMPILE and "no such layout" in refused.reason
    assert crashed is not None and crashed.outcome is Outcome.DID_NOT_COMPILE
    assert crashed.reason == "the compiler crashed: exit code 1"
    assert oversized is not None and oversized.outcome is Outcome.OUT_OF_RESOURCES
    assert str(H100.shared_memory) in oversized.reason
    unexpected, starved = verdicts[16], verdicts[32]
    assert unexpected is not None and unexpected.outcome is Outcome.DID_NOT_COMPILE
    assert unexpected.reason == "KeyError: 'planted'"
    assert starved is not None and starved.outcome is Outcome.INVALID
    assert "133 programs, 1 to a unit (255 registers" in starved.reason
    assert screen.verdict(GOOD, screen.submit(GOOD)) is None


SCRIPT = """
print("the script runs")
import sys
from autotune.config import Config
from autotune.machine import H100
from autotune.tuning.screening import Screen
from autotune.workloads import workload
found = workload("compiling")
with Screen(found, found.problem_type(m=64, n=64, k=64, world_size=2), H100) as screen:
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
