"""The schema: made by revisions that agree with the models, migrated in place, refused where it is newer."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, create_engine

from autotune.db import CacheKey, Provenance, Store, migrations
from autotune.db.engines.sqlite import APPLICATION_ID
from autotune.db.models import Base
from autotune.errors import StoreError

FIRST_REVISION = (
    "INSERT INTO studies (id, workload, problem, world_size, device, arch, interconnect, source_hash, space, triton,"
    " iris, torch, driver, seed, space_size, state, created_at) VALUES (1, 'all_gather_gemm', '{\"m\":4096}', 8,"
    " 'NVIDIA H200', 'sm_90', 'nvlink', 'abc', 'f00d', '3.6', '0', '2.11', '580', 5, 100, 'running',"
    " '2026-01-02T03:04:05+00:00')",
    "INSERT INTO trials (study_id, number, source, config, outcome, reason, seconds, created_at) VALUES (1, 3,"
    " 'sampler', '{\"mode\":\"push\"}', 'crashed', 'rank 1 died', '{\"compile\":1.5}', '2026-01-02T03:04:06+00:00')",
)
"""Rows as the first revision kept them."""


def as_text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def test_the_revisions_make_what_the_models_say(url: URL) -> None:
    Store.open(as_text(url)).close()
    engine = create_engine(url)
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


def test_a_database_of_the_first_revision_is_migrated_with_all_that_is_in_it(url: URL, path: Path) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.upgrade(connection, "0001")
        for statement in FIRST_REVISION:
            connection.exec_driver_sql(statement)
    engine.dispose()
    if url.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(path)) as raw:
            raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    with Store.open(as_text(url)) as store:
        [study] = store.studies()
        assert (study.id, study.seed, study.state, study.key.device) == (1, 5, "running", "NVIDIA H200")
        [trial] = store.trials(1)
        assert (trial.number, trial.predicted, trial.evaluation.reason) == (3, None, "rank 1 died")
        store.record(1, dataclasses.replace(trial, predicted=12.5))
        assert [each.predicted for each in store.trials(1)] == [None, 12.5]


def test_what_was_tuned_before_there_were_regimes_was_ranked_as_in_a_graph(
    path: Path, key: CacheKey, provenance: Provenance
) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        migrations.upgrade(connection, "0002")
        for statement in FIRST_REVISION:
            connection.exec_driver_sql(statement)
    engine.dispose()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    with Store.open(path) as store:
        [study] = store.studies()
        assert study.key.regime == "graph"
        anew = store.study(dataclasses.replace(study.key, regime="pipelined"), study.provenance, seed=0, space_size=1)
        assert anew.id != study.id and store.study(study.key, study.provenance, seed=0, space_size=1) == study


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
