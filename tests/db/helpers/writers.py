"""Starting, commanding and hearing the processes of writer.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import autotune.db

WRITER = Path(__file__).with_name("writer.py")
ROOT = Path(autotune.db.__file__).parents[2]


def start_writer(trials: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(WRITER), str(trials)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def started(processes: int, trials: int) -> Iterator[list[subprocess.Popen[str]]]:
    """``count`` started writers; all must end well."""
    with ExitStack() as stack:
        writers = [stack.enter_context(start_writer(trials)) for _ in range(processes)]
        for writer in writers:
            assert heard(writer) == "ready"
        yield writers
        for writer in writers:
            writer.communicate(timeout=300)
            assert writer.returncode == 0


def tell(writer: subprocess.Popen[str], place: str | Path) -> None:
    assert writer.stdin is not None
    print(place, file=writer.stdin, flush=True)


def heard(writer: subprocess.Popen[str]) -> str:
    assert writer.stdout is not None
    return writer.stdout.readline().strip()
