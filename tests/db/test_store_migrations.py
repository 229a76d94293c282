"""The schema: made by revisions that agree with the models, migrated in place, refused where it is newer."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from autotune.db import CacheKey, Provenance, Store, migrations
from autotune.db.models import Base
from autotune.db.engines.sqlite import APPLICATION_ID
from autotune.errors import StoreError


def test_the_revisions_make_what_the_models_say(path: Path) -> None:
    Store.open(path).close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == migrations.HEAD
    engine.dispose()


def test_every_revision_file_is_listed_in_order() -> None:
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert tuple(reversed([each.revision for each in script.walk_revisions()])) == migrations.REVISIONS


def test_a_new_file_is_marked_as_ours_and_in_wal_mode(path: Path) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '0099'")
        connection.commit()
    before = path.read_bytes()
    for create in (True, False):
        with pytest.raises(StoreError) as caught:
            Store.open(path, create=create)
        assert str(caught.value) == (
            f"database {path} has schema '0099', of a newer iris-autotune; this one knows up to '{migrations.HEAD}': "
            "upgrade iris-autotune, or name another database"
        )
    assert path.read_bytes() == before


def test_an_older_schema_is_migrated_in_place(path: Path, key: CacheKey, provenance: Provenance) -> None:
    with closing(sqlite3.connect(path)) as connection:  # ours, from before the first revision
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    with Store.open(path) as store:
        assert store.study(key, provenance, seed=1, space_size=1).state == "running"


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE trials (in_the_way INTEGER)")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError, match="table trials already exists"):
            Store.open(path)
    assert path.read_bytes() == before
