"""Fixtures of the fleet's tests: an empty database, a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import KINDS, empty, empty_database, server  # noqa: F401

from autotune.fleet import worker


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, path: str) -> Iterator[str]:
    """Of an empty store, once on each kind of database."""
    with empty(request, Path(path), tables=True) as found:
        yield found.render_as_string(hide_password=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "cache.db")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOOK_SECONDS", 0.01)
