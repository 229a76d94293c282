"""The tables, made whole or not at all, refused where another version made them; a look that changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sample import KEY, PROVENANCE, TRIAL
from sqlalchemy import URL, create_engine, inspect, update
from studies import as_text, fill

from autotune.db import Store
from autotune.db.engines import REVISION, condition
from autotune.db.engines.schema import VERSION
from autotune.db.models import Base
from autotune.errors import StoreError


def test_a_new_database_has_every_table_and_its_revision(url: URL) -> None:
    Store.open(as_text(url)).close()
    engine = create_engine(url)
    assert set(Base.metadata.tables) <= set(inspect(engine).get_table_names())
    assert inspect(engine).get_view_names() == ["tuning_winners"]
    with engine.connect() as connection:
        assert connection.execute(VERSION.select()).scalars().all() == [REVISION]
    engine.dispose()


def test_tables_of_another_revision_are_refused(url: URL) -> None:
    Store.open(as_text(url)).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(update(VERSION).values(version_num="0009"))
    engine.dispose()
    for look in (Store.open, lambda text: Store.open(text, create=False), condition):
        with pytest.raises(StoreError, match="'0009'") as caught:
            look(as_text(url))
        assert "\n" not in str(caught.value)


def test_a_database_in_use(url: URL) -> None:
    with Store.open(as_text(url)) as store:
        store.record(store.study(KEY, PROVENANCE, seed=0, space_size=1).id, TRIAL)
        found = condition(as_text(url))
        assert found.place == store.place
    assert (found.has_tables, found.trials, found.writable) == (True, 1, True)
    assert found.server.startswith({"sqlite": "SQLite 3.", "postgresql": "PostgreSQL "}[url.get_backend_name()])


def test_damage_inside_is_found(path: Path) -> None:
    fill(path, 200)
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
