"""Runs a function of a test module in several rank processes, as torchrun would, and returns what each one returned.

The processes are forked like a gang's: they find torch, Triton and Iris imported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from autotune.machine import machine
from autotune.processes.bound import parents_connection
from autotune.processes.python import Process, kill_all, start_python
from autotune.ranks.gang import IMPORTS

DEADLINE = 900.0
"""Seconds; only a real hang takes as long. A rank that dies is seen at once."""


class RankDied(Exception):
    """A rank ended without an answer; the message holds the ends of all logs."""


def run_ranks(
    file: str, function: str | list[str], world_size: int, folder: Path, *, gpu: bool | str = False,
    argument: Any = None, seconds: float = DEADLINE,
) -> list[Any]:  # fmt: skip
    """Call ``function(argument)`` of the module at ``file`` on every rank; a rank that dies kills the rest. Of several
    functions there are a rank's answers by name.

    ``gpu``: each on a GPU of its own, or, with ``one``, all on the first one; they take turns.
    """
    ranks: list[Process] = []
    try:
        for rank in range(world_size):
            process, connection = start_rank("ranks_of_functions", folder / f"log{rank}", gpu)
            ranks.append(process)
            connection.send((rank, file, function, world_size, str(folder), argument, seconds))
            connection.close()
        deadline = time.monotonic() + seconds
        while any(rank.poll() is None for rank in ranks):
            if time.monotonic() > deadline or any(rank.poll() for rank in ranks):
                raise RankDied(_logs(folder, world_size))
            time.sleep(0.02)
    finally:
        kill_all(ranks)
    if any(rank.returncode for rank in ranks):
        raise RankDied(_logs(folder, world_size))
    return [json.loads((folder / f"answer{rank}").read_text()) for rank in range(world_size)]


def start_rank(module: str, log: Path, gpu: bool | str) -> tuple[Process, Connection]:
    """A process that runs the module, and the connection to it; what it prints goes to the log."""
    if gpu:
        return start(module, log, {"CUDA_VISIBLE_DEVICES": "0"} if gpu == "one" else {}, imports=IMPORTS)
    return start(module, log, without_gpus())


def start(
    module: str, log: Path, settings: Mapping[str, str], imports: str = "rank_imports"
) -> tuple[Process, Connection]:
    """The same with these environment variables; it finds imported what ``imports`` imports."""
    environment = {**os.environ, **settings}
    ours, theirs = Pipe()
    with theirs, open(log, "wb") as file:
        return start_python(module, theirs, environment=environment, log=file, imports=imports), ours


def without_gpus() -> dict[str, str]:
    """Settings for the interpreter; those of the tuner's ranks where there are no GPUs to be hidden."""
    hidden = {} if machine().is_interpreter else {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return {"TRITON_INTERPRET": "1", **hidden}


@contextlib.contextmanager
def warnings_told() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("autotune").addHandler(handler)
    yield told
    logging.getLogger("autotune").removeHandler(handler)


def held() -> dict[str, int]:
    """System resources of a process that it should give back."""
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


def _logs(folder: Path, world_size: int) -> str:
    return "\n".join((folder / f"log{rank}").read_text()[-1500:] for rank in range(world_size))


def join(rank: int, world_size: int, folder: str, *, seconds: float = DEADLINE) -> None:
    """Make this process a rank of those that meet in the folder."""
    import torch.distributed as dist

    from autotune.ranks.rank import backend

    dist.init_process_group(
        **backend(machine(), rank, world_size),
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=seconds),
    )


def _main() -> None:
    import importlib.util

    import torch.distributed as dist

    with parents_connection() as driver:
        rank, file, function, world_size, folder, argument, seconds = driver.recv()
    join(rank, world_size, folder, seconds=seconds)
    spec = importlib.util.spec_from_file_location("functions", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["functions"] = module
    spec.loader.exec_module(module)
    several = isinstance(function, list)
    answers = {name: getattr(module, name)(argument) for name in (function if several else [function])}
    Path(folder, f"answer{rank}").write_text(json.dumps(answers if several else answers[function]))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    _main()
