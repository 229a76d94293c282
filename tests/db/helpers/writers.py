"""Starting, commanding and hearing the processes of writer.py, which are forked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ranks_of_functions import DEADLINE, start, without_gpus

from autotune.processes.python import kill_all


class Writer:
    """A process, as a context manager; it is ended if it has not ended already."""

    def __init__(self, trials: int) -> None:
        self._process, self._connection = start("writer", Path(os.devnull), without_gpus(), imports="writer_imports")
        self._connection.send(trials)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._connection.close()

    def tell(self, place: str | Path) -> None:
        self._connection.send(str(place))

    def heard(self) -> str:
        assert self._connection.poll(DEADLINE)
        return str(self._connection.recv())

    def rest(self) -> Iterator[str]:
        try:
            while True:
                yield self.heard()
        except (EOFError, ConnectionResetError):
            return

    def end(self) -> int:
        """The exit code, once nothing more is asked."""
        self._connection.send(None)
        return self._process.wait(DEADLINE)

    def kill(self) -> None:
        kill_all([self._process])


@contextmanager
def started(processes: int, trials: int) -> Iterator[list[Writer]]:
    with ExitStack() as stack:
        writers = [stack.enter_context(Writer(trials)) for _ in range(processes)]
        for writer in writers:
            assert writer.heard() == "ready"
        yield writers
        for writer in writers:
            assert writer.end() == 0
