"""Runs a Python script as a command line would, alone or as torchrun's ranks, in forked processes.

They find torch, Triton and Iris imported, which saves two CPU seconds each; the rest is as in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess

import torch.distributed as dist
from ranks_of_functions import DEADLINE, start, without_gpus

from autotune.processes.bound import parents_connection
from autotune.processes.python import Process, kill_all
from autotune.ranks.gang import IMPORTS

ROOT = Path(__file__).parents[1]
KINDS = ("out", "err")
GRACE = 30.0
"""Seconds for the other ranks to end once one has failed, before they are killed."""


def run_script(
    *words: str, ranks: int = 0, hosts: int = 1, interpreted: bool = True, settings: Mapping[str, str] | None = None,
    seconds: float = DEADLINE,
) -> CompletedProcess[str]:  # fmt: skip
    """As ``python WORDS`` with these environment variables; WORDS begin with a file, ``-m`` or ``-c``.

    With ``ranks`` as many processes run it, as under a torchrun on each of ``hosts``, until one of them fails; what
    they print is in the order of the ranks. What has not ended after so many seconds is killed.
    """
    started: list[Process] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        environment = dict(settings or {})
        if ranks:
            # The ranks meet in this process's store, as they do in torchrun's: no port is chosen before it is taken.
            wait = timedelta(seconds=DEADLINE)
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait)
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks)}
            environment |= {"LOCAL_WORLD_SIZE": str(ranks // hosts), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        stack.callback(kill_all, started)
        for rank in range(max(1, ranks)):
            here = f"{folder}/{rank}"
            mine = environment | ({"RANK": str(rank), "LOCAL_RANK": str(rank % (ranks // hosts))} if ranks else {})
            log = Path(f"{here}.log")
            process, connection = (
                start("scripts", log, without_gpus()) if interpreted else start("scripts", log, {}, imports=IMPORTS)
            )
            started.append(process)
            with connection:
                connection.send((words, mine, f"{here}.out", f"{here}.err"))
        _wait(started, seconds)
        kill_all(started)
        printed = [_joined(Path(folder), kind, len(started)) for kind in KINDS]
        ends = [process.returncode or 0 for process in started]
    failed = [end for end in ends if end]
    return CompletedProcess(words, failed[0] if failed else 0, *printed)


def run_on_gpus(*words: str) -> CompletedProcess[str]:
    """The same by torchrun itself, as two ranks on this machine's GPUs."""
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    return subprocess.run([sys.executable, *torchrun, *words], env=environment, capture_output=True, text=True)


def _joined(folder: Path, kind: str, ranks: int) -> str:
    files = (folder / f"{rank}.{kind}" for rank in range(ranks))
    return "".join(file.read_text() for file in files if file.exists())


def _wait(started: list[Process], seconds: float) -> None:
    """Until all have ended, or, once one has failed, for the time that the others need to fail too."""
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in started):
        if any(process.poll() for process in started):
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _main() -> None:
    words, settings, out, err = _received(parents_connection())
    for place, descriptor in ((out, 1), (err, 2)):
        with open(place, "wb") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.update(settings)
    kind, *rest = words
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


def _received(connection: Connection) -> tuple[tuple[str, ...], dict[str, str], str, str]:
    with connection:
        return connection.recv()


if __name__ == "__main__":
    _main()
