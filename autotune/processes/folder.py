"""A folder for temporary files that does not outlive its process for long, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "iris-autotune-"
LOCK = "lock"


class OwnFolder:
    """Removed by ``close``. Where its process was killed before, the next one to make such a folder removes it.

    Its process holds a lock on a file in it, which the kernel releases with the process: a process id would not tell,
    as containers that share a disk have the same ones.
    """

    def __init__(self, place: Path | None = None) -> None:
        """Sweep what killed processes have left in ``place``, and make one there; else among the temporary files."""
        place = place or Path(tempfile.gettempdir())
        _sweep(place)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        self._lock = open(self.path / "not locked yet", "wb")  # noqa: SIM115  held for as long as the folder
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(self._lock.name, self.path / LOCK)  # what has this name is locked, unless its process is gone

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(place: Path) -> None:
    for lock in place.glob(f"{PREFIX}*/{LOCK}"):
        # Held by a process that lives, or removed meanwhile by another one that sweeps.
        with contextlib.suppress(OSError), open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
