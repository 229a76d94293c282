"""The fork server: a process that has done the slow imports, and forks a Python process per request.

``python.py`` runs this file as a script. It imports nothing of the package that it keeps: what it forks imports the
package as it then lies on the disk. (The standard library's fork server would import the driver's ``__main__``, takes
one environment for all, and looks for modules in the current folder.)
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

LOOK = 1.0
"""Seconds between two looks at the driver: a forked process may hold its end of the socket open after it has gone."""


def main() -> None:
    """Serve the driver at the other end of the socket whose descriptor is the first argument. The others are the
    driver's process id and the module that imports what is to be there.
    """
    requests, driver, module = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    gc.disable()  # a collection amid imports frees nothing
    importlib.import_module(module)
    for name in [name for name in sys.modules if name.partition(".")[0] == module.partition(".")[0]]:
        del sys.modules[name]
    # Else the first collection in each process would look at all that torch has made. To collect before that would free
    # 7,000 small objects, and takes 0.13 s (2026-11-25).
    gc.freeze()
    gc.enable()
    _Server(requests, driver).serve()


class _Server:
    """The forked processes, each with the connection on which the driver hears of its end."""

    def __init__(self, requests: socket.socket, driver: int) -> None:
        self._requests, self._driver = requests, driver
        self._ended, ended = os.pipe()
        os.set_blocking(ended, False)
        signal.set_wakeup_fd(ended)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the byte in the pipe is what counts
        self._inherited = [requests.fileno(), self._ended, ended]
        self._children: dict[int, Connection] = {}

    def serve(self) -> None:
        """Fork on request and report ends until the driver is gone; then end the remaining processes."""
        while os.getppid() == self._driver:
            ready, _, _ = select.select([self._requests.fileno(), self._ended], [], [], LOOK)
            if self._ended in ready:
                os.read(self._ended, 1 << 16)
                self._report()
            if self._requests.fileno() in ready:
                request, descriptors, _, _ = socket.recv_fds(self._requests, 1, 3, socket.MSG_CMSG_CLOEXEC)
                if not request:
                    break
                self._fork(*descriptors)
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _fork(self, connection: int, driver: int, output: int) -> None:
        server, reports = os.getpid(), Connection(driver)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (*self._inherited, *(other.fileno() for other in self._children.values())):
                os.close(descriptor)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            _become(reports, connection, server)
        self._children[pid] = reports
        os.close(connection)
        os.close(output)

    def _report(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with self._children.pop(pid) as driver, contextlib.suppress(OSError):
                    driver.send(os.waitstatus_to_exitcode(status))


def _become(driver: Connection, connection: int, server: int) -> NoReturn:
    """Receive a module in the new process, and run it as ``python -m`` would."""
    code = 1
    try:
        os.setsid()
        driver.send(os.getpid())  # not before: from now on the driver may kill the group
        module, environment, path, folder = driver.recv()
        driver.close()
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        sys.path_importer_cache.clear()
        os.chdir(folder)
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # else all processes would draw the same numbers
        sys.argv = [module, str(connection), str(server)]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001  the process's end: its traceback is for the log
        traceback.print_exc()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream may be None
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
