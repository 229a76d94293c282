"""The mark of a connection that is going to write; each kind of database lets one such in at a time."""

from __future__ import annotations

WRITING = "autotune_writing"
"""Execution option: SQLite begins immediately, PostgreSQL takes the lock of our writers."""
