"""The driver's side of the fork servers: chooses a server, and handles the processes that it forks."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

SERVER = Path(__file__).with_name("fork_server.py")

START_SECONDS = 300.0
"""Seconds for a server's imports: a second or two normally, minutes on a busy host."""

ENDING = 20.0
"""Seconds for a server to end on request; it kills its forked processes first."""

READ_AT_IMPORT = (
    "AMD", "ATEN", "CUDA", "GOMP", "HIP", "HSA", "IRIS", "KMP", "LD_", "MALLOC", "MKL", "NCCL", "NPY", "NUMPY",
    "NVIDIA", "OMP", "OPENBLAS", "PYTHON", "PYTORCH", "RCCL", "ROC", "TORCH", "TRITON",
)  # fmt: skip
"""Prefixes of environment variables that a server's imports, or the libraries that they load, read."""


LIBRARIES = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
"""The folders of installed packages."""


class Forked:
    """A forked process, with the used part of ``subprocess.Popen``'s interface."""

    def __init__(self, pid: int, reports: Connection) -> None:
        """``reports`` delivers its exit code."""
        self.pid = pid
        self.returncode: int | None = None
        self._reports = reports
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended, for several threads too. Raises subprocess.TimeoutExpired."""
        if self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            try:
                if self.returncode is None and self._reports.poll(timeout):
                    self.returncode = self._reported()
            finally:
                self._lock.release()
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def _reported(self) -> int:
        with self._reports:
            try:
                code: int = self._reports.recv()
            except (EOFError, OSError):
                code = -signal.SIGKILL  # the server has ended, and its processes with it
        return code


class ForkServer:
    """A process that has imported a module, and forks others that have it too. They end with it, and it with its
    driver.

    Safe to use from many threads: a request is one message, and each process has its own connection for answers.
    """

    def __init__(self, imports: str, environment: Mapping[str, str]) -> None:
        """Returns at once, before the imports are done."""
        self._served = False
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(SERVER), str(theirs.fileno()), str(os.getpid()), imports],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def start(
        self, module: str, connection: Connection, environment: Mapping[str, str], path: Sequence[str], output: int
    ) -> Forked | None:
        """Run ``module`` in a forked process that prints to ``output``; None if this server cannot."""
        reports, theirs = Pipe()
        try:
            with theirs:
                socket.send_fds(self._requests, [b"+"], [connection.fileno(), theirs.fileno(), output])
            if reports.poll(START_SECONDS):
                pid = reports.recv()
                self._served = True
                reports.send((module, dict(environment), list(path), os.getcwd()))
                return Forked(pid, reports)
            self.close()
        except (OSError, EOFError) as error:
            if getattr(error, "errno", None) != errno.EBADF:  # that is a stdout which this process does not have
                self.close()
        reports.close()
        return None

    @property
    def is_lost(self) -> bool:
        """True if it has ended although its imports went well."""
        return self._served and self._process.poll() is not None

    def close(self) -> None:
        """End the server and all processes that it forked."""
        with contextlib.suppress(OSError):
            self._requests.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold it open, too
        self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING if self._served else 0)
        self._process.kill()
        self._process.wait()


_servers: dict[tuple[object, ...], ForkServer] = {}
_lock = threading.Lock()


def fork_python(
    imports: str, module: str, connection: Connection, environment: Mapping[str, str], path: Sequence[str], output: int
) -> Forked | None:
    """Have a server fork a process that runs ``module``, another server if that one was killed meanwhile; None if none
    can.
    """
    server = server_with(imports, environment)
    forked = server.start(module, connection, environment, path, output)
    if forked is None and server.is_lost:
        forked = server_with(imports, environment).start(module, connection, environment, path, output)
    return forked


def server_with(imports: str, environment: Mapping[str, str]) -> ForkServer:
    """This process's server that has imported what ``imports`` imports, from the same places and as the environment
    has it. It is started where there is none, and ends with this process.
    """
    environment = {**environment, "PYTHONPATH": _before_users_folders(environment.get("PYTHONPATH", ""))}
    read = sorted((name, value) for name, value in environment.items() if name.startswith(READ_AT_IMPORT))
    key = (os.getpid(), imports, *read)  # a process that this one forks gets servers of its own
    with _lock:
        if key in _servers and _servers[key].is_lost:
            _servers.pop(key).close()
        if key not in _servers:
            _servers[key] = ForkServer(imports, environment)
        return _servers[key]


def _before_users_folders(path: str) -> str:
    """A search path without what was appended to it, the folders of users' files: nothing there hides a library, and
    each forked process gets the whole path.
    """
    folders = list(dict.fromkeys(path.split(os.pathsep)))
    last = max((number for number, folder in enumerate(folders) if folder in LIBRARIES), default=len(folders))
    return os.pathsep.join(folders[: last + 1])


@atexit.register
def _close_servers() -> None:
    for (pid, *_), server in _servers.items():
        if pid == os.getpid():
            server.close()
