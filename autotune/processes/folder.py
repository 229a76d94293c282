"""A folder for temporary files that is swept if its process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from autotune.errors import AutotuneError

PREFIX = "iris-autotune-"
LOCK = "lock"


class OwnFolder:
    """Removed by ``close``, or, after a kill, by the next process that makes such a folder.

    Its process holds a lock on a file in it, which the kernel releases with the process. Process ids would not do:
    containers that share a disk have the same ones.
    """

    def __init__(self, place: Path | None = None) -> None:
        """Sweep left-overs of killed processes in ``place`` (default: the temporary files), and make a folder there.

        Raises AutotuneError where none can be made.
        """
        try:
            place = place or Path(tempfile.gettempdir())
            _sweep(place)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            self._lock = open(self.path / "not locked yet", "wb")  # noqa: SIM115  held for as long as the folder
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.rename(self._lock.name, self.path / LOCK)  # what has this name is locked, unless its process is gone
        except OSError as error:
            where = f" in {place}" if place is not None else ""
            raise AutotuneError(
                f"no folder for temporary files can be made{where}: {error.strerror}; free some space there, or allow "
                "this user to write it"
            ) from error

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(place: Path) -> None:
    """Remove this user's folders whose processes are gone. The place is shared with others: nothing else is touched."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            # Not ours, held by a process that lives, or removed meanwhile by another one that sweeps.
            with contextlib.suppress(OSError):
                if entry.name.startswith(PREFIX) and _is_own(entry.stat(follow_symlinks=False), stat.S_ISDIR):
                    _remove_if_left(entry.path)


def _remove_if_left(folder: str) -> None:
    with open(os.path.join(folder, LOCK), "rb", opener=_at_once) as lock:
        if _is_own(os.fstat(lock.fileno()), stat.S_ISREG):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _at_once(path: str, flags: int) -> int:
    """Opens no symlink's target, and does not wait for a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _is_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    return found.st_uid == os.geteuid() and is_kind(found.st_mode)
