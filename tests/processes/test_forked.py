"""Fork servers: what a process that one has forked finds, what of the server it does not see, and how both end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import pytest
from process_ends import gone

from autotune.processes.forked import Forked
from autotune.processes.python import PACKAGE_ROOT, Process, start_python

WORKER = """
import gc, os, sys
from multiprocessing.connection import Connection
from autotune.processes.bound import die_with_parent
from grown.value import VALUE
connection, parent = Connection(int(sys.argv[1])), int(sys.argv[2])
die_with_parent(parent)
connection.send(
    {
        "value": VALUE, "slow": "slow_to_import" in sys.modules, "parent": parent, "folder": os.getcwd(),
        "setting": os.environ.get("SETTING"), "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
        "leads": os.getsid(0) == os.getpid(), "collects": gc.isenabled(),
    }
)
exec(connection.recv())
"""

DRIVER = """
import os, sys, time
from multiprocessing.connection import Pipe
from autotune.processes.python import start_python
ours, theirs = Pipe()
process = start_python("grown.worker", theirs, imports="grown.imports")
print(process.pid, ours.recv()["parent"], flush=True)
if os.fork() == 0:
    os.close(1)
    time.sleep(600)  # holds open what the driver had
time.sleep(600)
"""

Start = Callable[..., tuple[Process, Connection]]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a worker, and with what it imports: a module beside the package, which counts its imports."""
    folder = tmp_path / "grown"
    folder.mkdir()
    count = tmp_path / "imports"
    (tmp_path / "slow_to_import.py").write_text(f"with open({str(count)!r}, 'a') as count: count.write('once ')\n")
    files = {"__init__": "", "imports": "import slow_to_import, grown.value", "value": "VALUE = 1", "worker": WORKER}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.fixture
def start(package: Path) -> Start:
    """Starts a worker, whose outputs go to the file ``log``."""

    def started(**settings: str) -> tuple[Process, Connection]:
        ours, theirs = Pipe()
        with theirs, open(package.parent / "log", "ab") as log:
            found = {**os.environ, **settings}
            return start_python("grown.worker", theirs, environment=found, log=log, imports="grown.imports"), ours

    return started


def ended(process: Process, connection: Connection, code: str = "pass") -> int:
    """Its exit code, once it has run the code."""
    connection.send(code)
    return process.wait()


def test_processes_share_imports_alone(start: Start, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(SETTING="a")
    monkeypatch.chdir(package)
    second = start()
    (one, other) = (connection.recv() for _, connection in (first, second))
    assert one["slow"] and other["slow"] and (package.parent / "imports").read_text() == "once "
    assert one["parent"] == other["parent"] != os.getpid()
    assert (one["setting"], other["setting"]) == ("a", None)
    assert one["folder"] != other["folder"] == str(package)
    assert len(one["descriptors"]) == len(other["descriptors"]) == 4, "the standard ones, and the connection"
    assert one["leads"] and other["leads"] and one["collects"] and other["collects"]
    assert [ended(*each) for each in (first, second)] == [0, 0]


def test_each_process_imports_the_package_as_it_then_is(start: Start, package: Path) -> None:
    first = start()
    assert first[1].recv()["value"] == 1
    (package / "value.py").write_text("VALUE = 22")
    second = start()
    assert second[1].recv()["value"] == 22
    assert [ended(*each) for each in (first, second)] == [0, 0]
    assert (package.parent / "imports").read_text() == "once "


@pytest.mark.parametrize(
    ("code", "exit_code", "log"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('so long')", 1, "so long"),
        ("os._exit(5)", 5, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("print('out'); print('err', file=sys.stderr)", 0, "out"),
        ("import signal; signal.raise_signal(signal.SIGSEGV)", -signal.SIGSEGV, ""),
    ],
)
def test_a_process_ends_as_one_started_anew(start: Start, package: Path, code: str, exit_code: int, log: str) -> None:
    process, connection = start()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0)
    assert ended(process, connection, code) == exit_code == process.returncode == process.poll()
    assert log in (package.parent / "log").read_text()


def test_a_variable_that_imports_may_read_takes_another_server(start: Start, package: Path) -> None:
    both = start(TRITON_INTERPRET="1"), start(TRITON_INTERPRET="0")
    parents = {connection.recv()["parent"] for _, connection in both}
    assert len(parents) == 2 and (package.parent / "imports").read_text() == "once once "
    assert [ended(*each) for each in both] == [0, 0]


def test_a_process_whose_imports_fail_in_the_server_is_started_alone_and_says_why(start: Start, package: Path) -> None:
    (package / "imports.py").write_text("raise SystemError('planted')")
    process, connection = start()
    told = connection.recv()
    assert told["parent"] == os.getpid() and not told["slow"]
    assert ended(process, connection, "import grown.imports") == 1
    assert "SystemError: planted" in (package.parent / "log").read_text()


def test_a_server_that_is_killed_takes_its_processes_along_and_is_replaced(start: Start) -> None:
    process, connection = start()
    server = connection.recv()["parent"]
    os.kill(server, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process, connection = start()
    assert connection.recv()["parent"] not in (server, os.getpid())
    assert ended(process, connection) == 0


def test_servers_and_processes_go_with_a_killed_driver_even_if_a_fork_of_it_lives_on(package: Path) -> None:
    path = os.pathsep.join([str(package.parent), str(PACKAGE_ROOT)])
    command, environment = [sys.executable, "-c", DRIVER], {**os.environ, "PYTHONPATH": path}
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    with driver:
        pids = [int(word) for word in driver.stdout.readline().split()]
        driver.kill()
        assert len(pids) == 2 and all(gone(pid, within=300) for pid in pids)
        os.killpg(driver.pid, signal.SIGKILL)


def test_what_a_process_without_a_log_prints_goes_to_stderr(package: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for imports in ("grown.imports", None):  # forked, and started by itself
        ours, theirs = Pipe()
        with theirs:
            process = start_python("grown.worker", theirs, imports=imports)
        assert ended(process, ours, "print('from a child', flush=True)") == 0
        assert capfd.readouterr() == ("", "from a child\n")


def test_threads_that_wait_for_one_process_read_its_end_once() -> None:
    """A pool that is closed kills a helper while its thread sees it die."""
    reports, server = Pipe()
    server.send(3)

    class Slow:
        reads = 0

        def __getattr__(self, name: str) -> object:
            return getattr(reports, name)

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None:
            reports.close()

        def recv(self) -> object:
            Slow.reads += 1
            time.sleep(0.05)  # the others come meanwhile
            return reports.recv()

    forked = Forked(1, Slow())  # type: ignore[arg-type]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: forked.wait(20.0), range(4))) == [3] * 4
    assert Slow.reads == 1 and reports.closed and forked.poll() == 3
