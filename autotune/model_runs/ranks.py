"""Rank processes of a measurement: one's error ends all of them at once, and is what the caller reads."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.errors import AutotuneError, GangError, WrongResult
from autotune.machine import Machine
from autotune.outcome import Regime
from autotune.processes.bound import parents_connection
from autotune.processes.folder import OwnFolder
from autotune.processes.memory import advice, shortage
from autotune.processes.python import Process, kill_all, start_python
from autotune.ranks.gang import IMPORTS, environment_of_ranks
from autotune.ranks.rank import join

if TYPE_CHECKING:
    from autotune.runtime.context import Context

SILENCE = 600.0
"""Seconds without a row, after which ranks count as hanging; to compile some layers takes a minute at most."""

LAST_WORDS = 1500
"""Characters of a rank's log in an error."""


class Measurement(Protocol):
    """The same on every rank, which gets it pickled."""

    @property
    def ranks(self) -> int: ...

    @property
    def heap_bytes(self) -> int: ...

    @property
    def url(self) -> str | None:
        """Database of tuned configs; None: the user's."""

    @property
    def regime(self) -> Regime: ...

    def rows(self, context: Context) -> Iterator[Any]:
        """Collective. Raises WrongResult on every rank."""


@dataclass(frozen=True)
class Opening:
    machine: Machine
    rank: int
    rendezvous: str
    measurement: Measurement


@contextmanager
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


def rows_of(measurement: Measurement, machine: Machine, silence: float = SILENCE) -> Iterator[Any]:
    """Rank 0's rows as they come, from rank processes that end with this iterator.

    Raises WrongResult as the ranks do, and GangError with a rank's last words where one fails, or none says anything
    for ``silence`` seconds.
    """
    folder, processes, connections = OwnFolder(), list[Process](), list[Connection]()
    environment = environment_of_ranks(machine.is_interpreter)
    try:
        for rank in range(measurement.ranks):
            ours, theirs = Pipe()
            connections.append(ours)
            with theirs, open(folder.path / f"log{rank}", "wb") as log:
                processes.append(start_python(__name__, theirs, environment=environment, log=log, imports=IMPORTS))
        for rank, connection in enumerate(connections):
            connection.send(Opening(machine, rank, str(folder.path / "rendezvous"), measurement))
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


def main() -> None:
    """A rank's process, from the driver's request to its last row."""
    driver = parents_connection()
    with ending_at_once():
        opening: Opening = driver.recv()
        asked = opening.measurement
        join(opening.machine, opening.rank, asked.ranks, opening.rendezvous)
        from autotune.runtime.context import Context

        try:
            with Context(asked.heap_bytes, url=asked.url, regime=asked.regime) as context:
                for row in asked.rows(context):
                    if opening.rank == 0:
                        driver.send(row)
            driver.send(None)
        except WrongResult as error:
            driver.send(error)


if __name__ == "__main__":
    main()
