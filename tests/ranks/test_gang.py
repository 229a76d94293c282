"""The gang: what it measures, what starting it takes, and what is left of it however it or its driver ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from every_mode import ONCE
from planted import plant
from process_ends import gone

import autotune
from autotune.config import Config
from autotune.errors import GangError
from autotune.machine import machine
from autotune.outcome import Outcome
from autotune.processes import python
from autotune.ranks import evaluation
from autotune.ranks import gang as gang_module
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.ranks.measure import WARM_CALLS
from autotune.runtime import WARM_CALL
from autotune.task import Task
from autotune.tuning.finals import finals_plan
from autotune.workloads import workload

pytestmark = pytest.mark.skipif(not machine().is_interpreter, reason="the faults are planted in interpreted ranks")

FAULTS = Path(__file__).parent / "faults" / "faulty_workload.py"
GOOD = Config({"mode": "bsp", "launch": "eager"})


@pytest.fixture(autouse=True)
def one_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels need no more here: the gang is what is tested."""
    monkeypatch.setitem(evaluation.BURSTS, "interpreter", 1)


def new_gang(name: str = "all_gather_gemm") -> Gang:
    found = workload(name)
    return Gang(found, Task(found.problem_type(m=32, n=64, k=64, world_size=2), machine()))


def test_the_parts_are_measured_and_no_time_of_the_host() -> None:
    with new_gang() as gang:
        parts = gang.measure_parts(MeasurePlan(1, 3, 3))
        lasting = gang.evaluate(GOOD, 1, finals_plan(4))
        assert gang.measure_rates("bf16") == {}, "of CPUs, they say nothing about GPUs"
        assert set(gang.start_seconds) == {"imports", "joining", "heap", "set-up"}
        assert all(seconds > 0 for seconds in gang.start_seconds.values())
    assert lasting.latency is not None and (lasting.latency.host, lasting.latency.isolated) == (None, None)
    assert set(parts) == {"all_gather", "gemm"} and all(part.median > 0 for part in parts.values())


def test_ranks_call_the_door_that_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter its time says nothing, and no warm call is one without a price."""
    monkeypatch.setenv("CALL_MARKS", str(tmp_path))
    found = workload("gemm_all_reduce")
    problem = found.problem_type(m=16, n=64, k=64, world_size=2)
    with Gang(found, Task(problem, machine()), warm_call="overhead_spy:spy") as gang:
        assert gang.measure_overhead() is None
        assert {file.name: len(file.read_text()) for file in tmp_path.iterdir()} == {
            "rank 0": WARM_CALLS, "rank 1": WARM_CALLS,
        }  # fmt: skip
        for gang.warm_call in (WARM_CALL, ""):
            assert gang.measure_overhead() is None


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
        config = gang.workload.default_config(Task(gang.problem, gang.machine))
        assert gang.evaluate(config, 1, ONCE).latency is not None
    assert not (other_code / "has run").exists()


@pytest.mark.usefixtures("users_imports")
def test_ranks_that_import_other_code_end_the_run(other_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(other_code)  # too late for this process, which has imported its own
    gang = new_gang()
    with pytest.raises(GangError, match=f"{other_code}/autotune"):
        gang.start()
    assert gang._processes == []


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the workload with planted faults, for a test to change between the driver's loading and the ranks'."""
    copy = tmp_path / "workload.py"
    copy.write_text(FAULTS.read_text())
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(copy))
    monkeypatch.setattr(gang_module, "GRACE", 1.0)
    return copy


def left_in(place: Path) -> list[Path]:
    """All but the folder of torch's compiler, which a first server of ranks imports."""
    return [each for each in place.iterdir() if not each.name.startswith("torchinductor")]


MADE = """
import resource, time
from autotune.errors import GangError
from autotune.machine import machine
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import workload
found = workload("all_gather_gemm")
gang = Gang(found, Task(found.problem_type(m=32, n=64, k=64, world_size=2), machine()))
"""
DRIVER = """
with gang:
    print(*(process.pid for process in gang._processes), flush=True)
    time.sleep(600)
"""


def test_a_killed_driver_in_a_checkout_takes_its_ranks_with_it_and_the_next_one_sweeps_its_folder(
    folders: Path, other_code: Path
) -> None:
    # Its ranks are the other checkout's, as it is, else they would end the run.
    command = [sys.executable, "-c", MADE + DRIVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=other_code) as killed:
        assert killed.stdout is not None
        pids = [int(word) for word in killed.stdout.readline().split()]
        killed.send_signal(signal.SIGKILL)
    assert len(pids) == 2 and all(gone(pid, within=300) for pid in pids)
    assert len(left_in(folders)) == 1, "nobody was left to remove it"
    with new_gang():
        assert len(left_in(folders)) == 1, "its own"
    assert left_in(folders) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("raise ValueError('planted')", "ValueError: planted"),
        ("import os; print('so long', file=__import__('sys').stderr, flush=True); os._exit(5)",
         "exit code 5; so long"),
        ("bytearray(1 << 60)", "MemoryError"),
        ("import os; os.write(2, b'Traceback:\\n  std::bad_alloc\\n'); os.abort()",
         "SIGABRT; memory: std::bad_alloc"),
    ],
    ids=["error", "exit", "memory", "memory of C++"],
)  # fmt: skip
def test_ranks_that_cannot_load_the_workload_say_so_once(file: Path, folders: Path, line: str, message: str) -> None:
    gang = new_gang("faulty")
    file.write_text(f"{file.read_text()}\n{line}\n")
    with pytest.raises(GangError, match=message):
        gang.start()
    assert gang._processes == [] and left_in(folders) == []


LIMITED = """
room = [bytes(1000) for _ in range(20_000)]
above = bytes(1000)
del room  # stays in the driver's heap, which cannot grow from here on
resource.setrlimit(resource.RLIMIT_AS, (100 << 20, resource.RLIM_INFINITY))
try:
    gang.start()
except GangError as error:
    print(error, len(gang._processes), sep="\\n")
"""


def test_ranks_that_may_not_use_the_addresses_that_they_need_say_so_in_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", MADE + LIMITED], capture_output=True, text=True, check=True)
    line, left = done.stdout.splitlines()
    assert "ulimit -v" in line and left == "0"


def test_a_closed_gang_leaves_nothing_and_can_be_used_again(file: Path, folders: Path) -> None:
    gang = new_gang("faulty")
    gang.close()
    with gang:
        pids = [process.pid for process in gang._processes]
        assert len(pids) == 2 and len(left_in(folders)) == 1
        gang.close()
        assert all(gone(pid) for pid in pids) and left_in(folders) == []
        assert gang.evaluate(GOOD, 1, ONCE).outcome is Outcome.MEASURED
        pids = [process.pid for process in gang._processes]
    gang.close()
    assert all(gone(pid) for pid in pids) and left_in(folders) == []


def test_ranks_whose_end_is_not_heard_of_do_not_keep_the_driver(
    file: Path, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a rank hangs in its GPU's driver: here what forked the ranks is stopped, and tells of no end."""
    monkeypatch.setattr(python, "DYING", 0.5)
    with new_gang("faulty") as gang:
        pids = [process.pid for process in gang._processes]
        server = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        assert server != os.getpid(), "the ranks were not forked by a server"
        closing = threading.Thread(target=gang.close, daemon=True)
        os.kill(server, signal.SIGSTOP)
        try:
            closing.start()
            closing.join(60)
            assert not closing.is_alive() and all(gone(pid, within=60) for pid in pids) and left_in(folders) == []
        finally:
            os.kill(server, signal.SIGCONT)


def test_an_interrupt_in_the_midst_of_a_config_ends_ranks_and_what_they_started(file: Path, folders: Path) -> None:
    children, driver = list[int](), threading.main_thread().ident
    assert driver == threading.get_ident()

    def interrupt(log: Path) -> None:
        children.append(wait_for_child(log))
        signal.pthread_kill(driver, signal.SIGINT)

    hangs = GOOD.replace(fault="hangs with a child", phase="check", victim=1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt), new_gang("faulty") as gang:
            pids = [process.pid for process in gang._processes]
            log = next(folders.glob("iris-autotune-*")) / "rank1.log"
            threading.Thread(target=interrupt, args=[log], daemon=True).start()
            gang.evaluate(hangs, 1, ONCE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(pids) == 2 and all(gone(pid, within=300) for pid in [*pids, *children])
    assert left_in(folders) == []


def wait_for_child(log: Path) -> int:
    """The process that rank 1 has started, once it has: it is then in the midst of a config."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith("child "):
                return int(line.split()[1])
        time.sleep(0.05)
    raise AssertionError("rank 1 has not come so far")


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    code = "from autotune.processes.bound import die_with_parent; die_with_parent(1 << 22); print('alive')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
