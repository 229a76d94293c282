"""The gang: what it measures, what starting it takes, and what is left of it when its driver is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from planted import plant
from process_ends import gone

import autotune
from autotune.errors import GangError
from autotune.machine import machine
from autotune.ranks import evaluation
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.tuning.finals import finals_plan
from autotune.workloads import workload

pytestmark = pytest.mark.skipif(not machine().is_interpreter, reason="the problem is one for interpreted ranks")


@pytest.fixture(autouse=True)
def one_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels need no more here: the gang is what is tested."""
    monkeypatch.setitem(evaluation.BURSTS, "interpreter", 1)


FOUND = workload("all_gather_gemm")
TASK = Task(FOUND.problem_type(m=32, n=64, k=64, world_size=2), machine())
CONFIG = FOUND.default_config(TASK)


def new_gang() -> Gang:
    return Gang(FOUND, TASK)


def test_the_parts_are_measured_and_no_time_of_the_host() -> None:
    with new_gang() as gang:
        parts = gang.measure_parts(MeasurePlan(1, 3, 3))
        lasting = gang.evaluate(CONFIG, 1, finals_plan(4))
        assert gang.measure_rates("bf16") == {}, "of CPUs, they say nothing about GPUs"
        assert set(gang.start_seconds) == {"imports", "joining", "heap", "set-up"}
        assert all(seconds > 0 for seconds in gang.start_seconds.values())
    assert lasting.latency is not None and (lasting.latency.host, lasting.latency.isolated) == (None, None)
    assert set(parts) == {"all_gather", "gemm"} and all(part.median > 0 for part in parts.values())


@pytest.fixture
def other_code(tmp_path: Path) -> Path:
    """A folder with a copy of the package whose kernels differ."""
    package = tmp_path / "checkout" / "autotune"
    shutil.copytree(Path(autotune.__file__).parent, package)
    device = package / "kernels" / "all_gather_gemm" / "device.py"
    device.write_text(f"{device.read_text()}\n# edited\n")
    return package.parent


@pytest.mark.usefixtures("users_imports")
def test_ranks_import_nothing_from_the_current_folder_be_it_another_checkout(
    other_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(other_code)
    (other_code / "autotune/kernels/all_gather_gemm/device.py").write_text("1 / 0")
    monkeypatch.chdir(other_code)
    with new_gang() as gang:
        assert gang.evaluate(CONFIG, 1, MeasurePlan(0, 1, 1)).latency is not None
    assert not (other_code / "has run").exists()


@pytest.mark.usefixtures("users_imports")
def test_ranks_that_import_other_code_end_the_run(other_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(other_code)  # too late for this process, which has imported its own
    gang = new_gang()
    with pytest.raises(GangError, match=f"{other_code}/autotune"):
        gang.start()
    assert gang._processes == []


DRIVER = """
import time
from autotune.machine import machine
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import workload
found = workload("all_gather_gemm")
with Gang(found, Task(found.problem_type(m=32, n=64, k=64, world_size=2), machine())) as gang:
    print(*(process.pid for process in gang._processes), flush=True)
    time.sleep(600)
"""


def test_a_killed_driver_in_a_checkout_takes_its_ranks_with_it_and_the_next_one_sweeps_its_folder(
    tmp_path: Path, other_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command, settings = [sys.executable, "-c", DRIVER], {**os.environ, "TMPDIR": str(folder)}
    # Its ranks are the other checkout's, as it is, else they would end the run.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings, cwd=other_code) as killed:
        assert killed.stdout is not None
        pids = [int(word) for word in killed.stdout.readline().split()]
        killed.send_signal(signal.SIGKILL)
    assert len(pids) == 2 and all(gone(pid, within=300) for pid in pids)
    assert len(list(folder.iterdir())) == 1, "nobody was left to remove it"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with new_gang():
        assert len(list(folder.iterdir())) == 1, "its own"
    assert list(folder.iterdir()) == []
