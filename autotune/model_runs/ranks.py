"""Rank processes: one's error ends all of them at once, and is what the caller reads."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, GangError
from autotune.machine import Machine
from autotune.model_runs.measuring import Order
from autotune.processes.folder import OwnFolder
from autotune.processes.memory import advice, shortage
from autotune.processes.python import Process, kill_all, start_python
from autotune.ranks.gang import IMPORTS, environment_of_ranks

SILENCE = 600.0
"""Seconds without a row, after which ranks count as hanging; to compile some layers takes a minute at most."""

LAST_WORDS = 1500
"""Characters of a rank's log in an error."""


@dataclass(frozen=True)
class Opening:
    machine: Machine
    rank: int
    rendezvous: str
    order: Order


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Around a rank's whole work: an error is printed, and ends the process without anything else.

    What ends a process in order waits for its device, and a collective there may wait for ranks that wait for this one.
    """
    try:
        yield
    except BaseException:  # noqa: BLE001  the process boundary: the error is printed, and ends the process
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def rows_of(order: Order, machine: Machine, silence: float = SILENCE) -> Iterator[Any]:
    """The rows of ``measured`` as they come, from rank processes that end with this iterator.

    Raises WrongResult as the ranks do, and GangError with a rank's last words where one fails, or none says anything
    for ``silence`` seconds.
    """
    folder, processes, connections = OwnFolder(), list[Process](), list[Connection]()
    try:
        for rank in range(order.plan.ranks):
            ours, theirs = Pipe()
            connections.append(ours)
            with theirs, open(folder.path / f"log{rank}", "wb") as log:
                environment = environment_of_ranks(machine.is_interpreter)
                processes.append(
                    start_python("autotune.model_runs.rank", theirs, environment=environment, log=log, imports=IMPORTS)
                )
        for rank, connection in enumerate(connections):
            connection.send(Opening(machine, rank, str(folder.path / "rendezvous"), order))
        yield from _answers(connections, folder.path, silence)
    finally:
        for connection in connections:
            connection.close()
        kill_all(processes)
        folder.close()


def _answers(connections: list[Connection], folder: Path, silence: float) -> Iterator[Any]:
    """Everything but errors, until all ranks have said that they are done."""
    waiting = {connection: rank for rank, connection in enumerate(connections)}
    while waiting:
        heard: Any = wait(list(waiting), silence)
        if not heard:
            rank = min(waiting.values())
            raise GangError(f"no rank said anything for {silence:g} s; rank {rank}: {_last_words(folder, rank)}")
        for connection in heard:
            try:
                said = connection.recv()
            except (EOFError, ConnectionError) as error:
                rank = waiting[connection]
                raise GangError(f"rank {rank} ended: {_last_words(folder, rank)}") from error
            if isinstance(said, AutotuneError):
                raise said
            if said is None:
                del waiting[connection]
            else:
                yield said


def _last_words(folder: Path, rank: int) -> str:
    log = (folder / f"log{rank}").read_text(errors="replace")
    short = shortage(log)
    return f"{short}; {advice()}" if short else log[-LAST_WORDS:].strip() or "it printed nothing"
