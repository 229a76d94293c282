"""The tables: made whole or not at all, and refused where another version made them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, inspect, update
from studies import as_text

from autotune.db import Store
from autotune.db.engines import REVISION, condition
from autotune.db.engines.schema import VERSION
from autotune.db.engines.sqlite import APPLICATION_ID
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


def test_tables_that_cannot_be_made_leave_the_file_as_it_was(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE tuning_trials (in_the_way INTEGER)")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError, match="tuning_trials"):
            Store.open(path)
    assert path.read_bytes() == before
