"""Marks a connection that will write; each kind of database admits one writer at a time."""

from __future__ import annotations

WRITING = "autotune_writing"
"""Execution option: SQLite begins immediately, PostgreSQL takes the writers' lock."""
