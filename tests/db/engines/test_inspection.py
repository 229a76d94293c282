"""A look at a database that changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sample import KEY, PROVENANCE, TRIAL, WINNER
from sqlalchemy import URL
from studies import as_text

from autotune.db import Store
from autotune.db.engines import condition
from autotune.errors import StoreError


def test_a_database_in_use(url: URL) -> None:
    with Store.open(as_text(url)) as store:
        store.record(store.study(KEY, PROVENANCE, seed=0, space_size=1).id, TRIAL)
        found = condition(as_text(url))
        assert found.place == store.place
    assert (found.has_tables, found.trials, found.writable) == (True, 1, True)
    assert found.server.startswith({"sqlite": "SQLite 3.", "postgresql": "PostgreSQL "}[url.get_backend_name()])


def test_damage_inside_is_found(path: Path) -> None:
    with Store.open(path) as store:
        study = store.study(KEY, PROVENANCE, seed=0, space_size=1)
        for _ in range(200):
            store.record(study.id, TRIAL)
        store.finish(study.id, WINNER)
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        condition(path)
    assert path.read_bytes() == content


def test_an_index_that_lacks_a_row_is_found(path: Path) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("DELETE FROM sqlite_master WHERE name = 'ix_tuning_trials_study_id'")
    with pytest.raises(StoreError, match="damaged"):
        condition(path)
