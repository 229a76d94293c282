"""Recorded search spaces: every config of a reduced space measured, kept as a table, and replayed without a GPU."""

from typing import TYPE_CHECKING

from autotune.lazily import loading

if TYPE_CHECKING:
    from autotune.recordings.file import read, write
    from autotune.recordings.recorder import record
    from autotune.recordings.recording import Recording
    from autotune.recordings.replay import Replay

__all__ = ["Recording", "Replay", "read", "record", "write"]

# A table is read before the tuner is loaded.
__getattr__ = loading(
    __name__,
    {
        "Recording": "autotune.recordings.recording",
        "Replay": "autotune.recordings.replay",
        "read": "autotune.recordings.file",
        "record": "autotune.recordings.recorder",
        "write": "autotune.recordings.file",
    },
)
