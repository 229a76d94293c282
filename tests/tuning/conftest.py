"""A database for each test of the loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import search_less


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a database that does not exist yet."""
    search_less(monkeypatch)
    return tmp_path / "cache.db"
