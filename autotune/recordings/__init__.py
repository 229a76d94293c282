"""Recorded search spaces: every config of a reduced space measured, kept as a table, and replayed without a GPU."""

from autotune.recordings.file import read, write
from autotune.recordings.recorder import record
from autotune.recordings.recording import Recording
from autotune.recordings.replay import Replay

__all__ = ["Recording", "Replay", "read", "record", "write"]
