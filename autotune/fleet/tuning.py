"""One problem tuned by ``tune WORKLOAD`` in a process of its own, which dies with the one that started it."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Protocol

from autotune.db.fleet_records import AttemptState, Wanted
from autotune.errors import AutotuneError
from autotune.processes.bound import start_bound
from autotune.results.figures import dashed, options_text
from autotune.settings import DATABASE
from autotune.workloads import installed_workload, provenance_of

LINES = 20
"""Last lines of a process's messages that are kept, for the reason of a failure."""

PATIENCE = 60.0
"""Seconds that a process has to end after it was asked to; its GPUs are taken from it then."""

MACHINE = ("device", "arch", "interconnect")
"""Fields of a key that depend on the GPUs which a process sees."""

ALIKE = "run a fleet command for each group of GPUs that are linked alike, with CUDA_VISIBLE_DEVICES"

INTERRUPTED = (130, 143)
"""Exit codes of ``tune`` after Ctrl-C and SIGTERM."""


@dataclass(frozen=True)
class End:
    state: AttemptState
    reason: str = ""


class Tuning(Protocol):
    """A tuning process that has been started."""

    @property
    def progress(self) -> str:
        """The last line that the process printed."""

    def stop(self) -> None:
        """Ask it to end with its measurements kept; may be called again."""

    def wait(self, seconds: float) -> End | None:
        """Its end, or None if it takes longer than that."""


class ChildTuning:
    """``tune WORKLOAD …`` as a child process."""

    def __init__(self, wanted: Wanted, url: str, tell: Callable[[str], None] = lambda line: None) -> None:
        """``tell`` hears its messages. Raises AutotuneError if the problem means nothing to this host's version."""
        words = command_of(wanted)
        self._wanted, self._tell = wanted, tell
        environment = {**os.environ, DATABASE.name: url, "NO_COLOR": "1"}
        self._process = start_bound(
            "autotune.cli", *words, "--json", environment=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._said: deque[str] = deque(maxlen=LINES)
        self._out: list[str] = []
        self._asked_at: float | None = None
        self._killer: threading.Timer | None = None
        streams = ((self._process.stdout, self._out.append), (self._process.stderr, self._say))
        self._readers = [threading.Thread(target=_read, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    @property
    def progress(self) -> str:
        return self._said[-1] if self._said else ""

    def stop(self) -> None:
        if self._killer is None:
            self._signal(signal.SIGTERM)
            self._killer = threading.Timer(PATIENCE, self._signal, (signal.SIGKILL,))
            self._killer.daemon = True
            self._killer.start()

    def wait(self, seconds: float) -> End | None:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if self._killer is not None:
            self._killer.cancel()
        for reader in self._readers:
            reader.join(PATIENCE)  # a grandchild may hold the pipes open
        return self._end(code)

    def _end(self, code: int) -> End:
        if self._killer is not None or code in INTERRUPTED:
            return End("stopped", "interrupted; its measurements are kept") if code else self._done()
        if code == 0:
            return self._done()
        if code < 0:
            return End("lost", f"the tuning process died of {signal.Signals(-code).name}")
        last = self.progress.removeprefix("tune: error: ") or f"exit code {code}"
        return End("lost" if last.startswith("database ") else "failed", last)

    def _done(self) -> End:
        """Done, if what is in the cache now is what was wanted."""
        entry = json.loads("".join(self._out))
        key = dataclasses.asdict(self._wanted.key)
        other = [name for name in MACHINE if entry.get(name, key[name]) != key[name]]
        if other:
            told = ", ".join(f"{name} {entry[name]}, wanted {key[name]}" for name in other)
            return End(
                "failed", f"the GPUs that it was given are another machine than the whole host ({told}); {ALIKE}"
            )
        found, wanted = entry.get("provenance", {}), self._wanted.provenance
        other = [name for name, value in found.items() if getattr(wanted, name) != value]
        if other:
            names = ", ".join(f"{name} {found[name]}" for name in other)
            return End("failed", f"this host runs another version ({names}); install the same everywhere")
        return End("done")

    def _say(self, line: str) -> None:
        if line.strip():
            self._said.append(line.strip())
            self._tell(line.strip())

    def _signal(self, number: int) -> None:
        """Signal the process; SIGKILL goes to its session, so that its ranks end with it."""
        try:
            if number == signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)
        except ProcessLookupError:
            return


def command_of(wanted: Wanted) -> list[str]:
    """The words of ``tune`` for a problem from the database, which is checked: such a name never loads a file.

    Raises AutotuneError, as for a problem of another version of the workload or other sources.
    """
    found = installed_workload(wanted.key.workload)
    problem = found.problem_type.from_dict(json.loads(wanted.key.problem))
    here = provenance_of(found)
    if (here.source_hash, here.space) != (wanted.provenance.source_hash, wanted.provenance.space):
        raise AutotuneError(
            f"this host has another version of {dashed(found.name)} than the host that made the list; install the same"
        )
    options: dict[str, Any] = {"regime": wanted.key.regime, **wanted.options}
    return [dashed(found.name), *shlex.split(f"{options_text(problem.as_dict())} {options_text(options)}")]


def _read(stream: IO[str], take: Any) -> None:
    with stream:
        for line in stream:
            take(line)
