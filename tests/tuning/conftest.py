"""A database for each test of the loop."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a database that does not exist yet."""
    return tmp_path / "cache.db"
