"""Steps of a long run: each a process of at most nine minutes, its result kept in a file: the run can resume."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

LONGEST = 540.0

JSON = "{json}"
"""Stands in a command for the file into which it writes its result; without it, what it prints is the result."""

FOLDER = "{folder}"
"""Stands in a command for the folder of results so far."""

KEYS = ("words", "machine", "versions", "date", "seconds", "found")

GRACE = 20.0

LOOK = """
import json; from dataclasses import asdict; from autotune.machine import machine, versions
print(json.dumps({"machine": asdict(machine()), "versions": versions()}))
"""


class StepFailed(Exception):
    """A step ended badly, or took too long."""


@dataclass(frozen=True)
class Step:
    """One command; the words that follow Python's own."""

    name: str
    words: tuple[str, ...]
    seconds: float = 420.0
    """Estimated time, with a margin."""


def here() -> dict[str, Any]:
    """This machine and its versions, asked for in a process of its own: a driver that holds a GPU is in the way."""
    found = subprocess.run([sys.executable, "-c", LOOK], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(found))


class Folder:
    """Results so far: NAME.json for each step, with machine, versions, command and date."""

    def __init__(self, path: Path, place: dict[str, Any]) -> None:
        """``place`` is what ``here`` says; empty where results of any machine are to be read."""
        path.mkdir(parents=True, exist_ok=True)
        self.path, self.place = path.resolve(), place
        self.database = f"sqlite:///{self.path / 'tuned.db'}"

    def found(self, step: Step) -> dict[str, Any] | None:
        """The stored result; None where there is none of this very command. Ends the program at a damaged one."""
        file = self.path / f"{step.name}.json"
        try:
            stored = json.loads(file.read_text())
            found = {key: stored[key] for key in KEYS}
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            sys.exit(f"{file}: {type(error).__name__}: {error}; remove it to measure it again")
        moved = bool(self.place) and found["machine"] != self.place["machine"]
        return None if moved or found["words"] != list(step.words) else found

    def run(self, step: Step, limit: float = LONGEST) -> None:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "found.json"
            words = (word.replace(JSON, str(file)).replace(FOLDER, str(self.path)) for word in step.words)
            command = [sys.executable, *words]
            printed = self._process(step, command, min(limit, LONGEST))
            found = json.loads(file.read_text()) if JSON in " ".join(step.words) else printed
        stored = {
            "step": step.name, "words": list(step.words), **self.place, "date": datetime.now(UTC).date().isoformat(),
            "seconds": round(time.monotonic() - begin, 1), "found": found,
        }  # fmt: skip
        partial = self.path / f"{step.name}.partial"
        partial.write_text(json.dumps(stored, indent=1) + "\n")
        partial.replace(self.path / f"{step.name}.json")

    def _process(self, step: Step, command: Sequence[str], limit: float) -> str:
        """The command's output. It gets a process group, which ends with it."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, "AUTOTUNE_DB": self.database, "PYTHONPATH": path}
        if self.place.get("machine", {}).get("kind") == "interpreter":
            environment["TRITON_INTERPRET"] = "1"
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT, env=environment
        ) as process:
            try:
                printed, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                end(process)
                what = f"{step.name}: not done within {limit:.0f} s; what it tuned is kept, run it again"
                raise StepFailed(what) from None
            except BaseException:
                end(process)
                raise
        if process.returncode:
            raise StepFailed(f"{step.name}: exit code {process.returncode} of: {' '.join(command)}")
        return printed


def end(process: subprocess.Popen[str]) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            return
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue


def run_all(folder: Folder, steps: Sequence[Step], deadline: float = math.inf) -> list[str]:
    """Run what is pending and would end before the deadline (``time.monotonic``); a line for each that is not done.

    SIGTERM ends the running step too, which is in a process group of its own.
    """
    pending = [step for step in steps if folder.found(step) is None]
    undone = []
    with exits_at_sigterm():
        for number, step in enumerate(pending, 1):
            left = deadline - time.monotonic()
            if left < step.seconds:
                undone.append(f"{step.name}: no time left, it takes up to {step.seconds:.0f} s")
                continue
            print(f"[{number}/{len(pending)}] {step.name}: {' '.join(step.words)}", file=sys.stderr, flush=True)
            try:
                folder.run(step, left)
            except StepFailed as error:
                print(error, file=sys.stderr, flush=True)
                undone.append(str(error))
    return undone


@contextlib.contextmanager
def exits_at_sigterm() -> Iterator[None]:
    """Within it SIGTERM unwinds the stack, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_to_end(main: Callable[[], None]) -> None:
    """Run a command made of steps; where it is interrupted, it says so and exits with 130."""
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted; what is done is kept, and the same command again continues", file=sys.stderr)
        sys.exit(130)
