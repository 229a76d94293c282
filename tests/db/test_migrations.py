"""The schema: made by revisions that agree with the models, migrated in place, refused where it is newer."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from every_mode import whole
from sqlalchemy import URL, Engine, create_engine, inspect

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, Winner, migrations
from autotune.db.engines import condition
from autotune.db.engines.sqlite import APPLICATION_ID
from autotune.db.models import Base
from autotune.errors import NoDatabase, StoreError
from autotune.runtime.entries import forget_entries, read_entries

FIRST_REVISION = (
    "INSERT INTO studies (id, workload, problem, world_size, device, arch, interconnect, source_hash, space, triton,"
    " iris, torch, driver, seed, space_size, state, created_at) VALUES (1, 'all_gather_gemm', '{\"m\":4096}', 8,"
    " 'NVIDIA H200', 'sm_90', 'nvlink', 'abc', 'f00d', '3.6', '0', '2.11', '580', 5, 100, 'running',"
    " '2026-01-02T03:04:05+00:00')",
    "INSERT INTO trials (study_id, number, source, config, outcome, reason, seconds, created_at) VALUES (1, 3,"
    " 'sampler', '{\"mode\":\"push\"}', 'crashed', 'rank 1 died', '{\"compile\":1.5}', '2026-01-02T03:04:06+00:00')",
)
"""Rows as the first revision kept them."""


INSERT_STUDY = (
    "INSERT INTO studies (id, workload, problem, world_size, device, arch, interconnect, source_hash, space, triton,"
    " iris, torch, driver, seed, space_size, state, created_at, finished_at, winner_config, winner_latency,"
    " winner_baselines, winner_limits) VALUES ({id}, 'all_gather_gemm', '{{\"m\":{m}}}', 8, 'NVIDIA H200', 'sm_90',"
    " 'nvlink', 'abc', 'f00d', '3.6', '0', '2.11', '580', 5, 100, {state}, '2026-01-02T03:04:05+00:00',"
    ' \'2026-01-02T04:04:05+00:00\', \'{{"mode":"push"}}\', \'{{"median":100.0,"low":99.0,"high":101.0,'
    '"skew":1.0,"iterations":10,"by_rank":[]}}\', \'{{}}\', \'{{}}\')'
)


def named_as_in(revision: str, statement: str) -> str:
    """The statement, its tables named as in that revision."""
    if revision < migrations.RENAMED:
        return statement
    return statement.replace("INTO studies", "INTO tuning_studies").replace("INTO trials", "INTO tuning_trials")


@contextmanager
def old_database(url: URL, path: Path, revision: str) -> Iterator[Engine]:
    """A database as an older version left it: a study under way with a trial, and one that finished."""
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.upgrade(connection, revision)
        for statement in (*FIRST_REVISION, INSERT_STUDY.format(id=2, m=2048, state="'finished'")):
            connection.exec_driver_sql(named_as_in(revision, statement))
    if url.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(path)) as raw:
            raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    try:
        yield engine
    finally:
        engine.dispose()


def as_text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@pytest.mark.parametrize("began", [None, "0001"])
def test_the_revisions_make_what_the_models_say(url: URL, path: Path, began: str | None) -> None:
    """As a new database does, which gets the models' tables at once."""
    if began is not None:
        with old_database(url, path, began):
            pass
    Store.open(as_text(url)).close()
    engine = create_engine(url)
    names = [
        index["name"]
        for table in ("tuning_studies", "tuning_trials", "tuning_taxes")
        for index in inspect(engine).get_indexes(table)
    ]
    assert sorted(map(str, names)) == [
        "ix_tuning_studies_live", "ix_tuning_studies_record_key", "ix_tuning_taxes_record_key",
        "ix_tuning_taxes_study_id", "ix_tuning_trials_record_key", "ix_tuning_trials_study_id",
    ]  # fmt: skip
    if url.get_backend_name() == "postgresql":
        for table, keys in (
            ("tuning_studies", []),
            ("tuning_trials", ["fk_tuning_trials_study_id"]),
            ("tuning_taxes", ["fk_tuning_taxes_study_id"]),
        ):
            assert inspect(engine).get_pk_constraint(table)["name"] == f"pk_{table}"
            assert [key["name"] for key in inspect(engine).get_foreign_keys(table)] == keys
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


def test_a_newer_schema_is_read_but_not_written(
    path: Path, key: CacheKey, provenance: Provenance, winner: Winner
) -> None:
    with Store.open(path) as store:
        study = store.study(key, provenance, seed=1, space_size=1)
        store.finish(study.id, winner)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '0099'")
        connection.execute("ALTER TABLE tuning_studies ADD COLUMN of_the_future TEXT")
        connection.commit()
    newer = (
        f"database {path} has schema '0099', of a newer iris-autotune; this one knows up to '{migrations.HEAD}': "
        "upgrade iris-autotune, or name another database"
    )
    with pytest.raises(StoreError) as caught:
        Store.open(path)
    assert str(caught.value) == newer
    with Store.open(path, create=False) as store:
        assert [entry.winner for entry in store.entries()] == [winner]
        with pytest.raises(StoreError, match="has schema '0099' and is open for reading only"):
            store.forget(study.id)
    for change in ("RENAME COLUMN reason TO why", "RENAME TO evaluations"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"ALTER TABLE tuning_trials {change}")
            connection.commit()
        with pytest.raises(StoreError) as caught:
            Store.open(path, create=False)
        assert str(caught.value) == newer, "it lacks what this version would read"


OLD = migrations.REVISIONS[:-1]


@pytest.mark.parametrize(
    ("url", "revision"),
    [
        *(("sqlite", revision) for revision in OLD),
        ("postgresql", OLD[0]),
        *(whole("postgresql", revision) for revision in OLD[1:-1]),
        ("postgresql", OLD[-1]),
    ],
    indirect=["url"],
)
def test_reading_migrates_nothing_and_writing_all_that_is_there(url: URL, path: Path, revision: str) -> None:
    with old_database(url, path, revision) as engine:
        with Store.open(as_text(url), create=False) as store:
            [entry] = store.entries()
            assert (entry.study_id, entry.winner.config) == (2, Config({"mode": "push"}))
            assert [study.id for study in store.studies()] == [1, 2]
            assert [trial.evaluation.reason for trial in store.trials(1)] == ["rank 1 died"]
            with pytest.raises(StoreError, match=f"has schema '{revision}' and is open for reading only"):
                store.forget(1)
            assert store.taxes(2) is None, "there is no table of them yet"
        with engine.connect() as connection:
            assert migrations.current(connection) == revision
            assert inspect(connection).has_table("tuning_studies") == (revision >= migrations.RENAMED)
            assert inspect(connection).has_table("tuning_taxes") == (revision >= migrations.TAXED)
            assert inspect(connection).get_view_names() == (["tuning_winners"] if revision >= "0006" else [])
            assert inspect(connection).has_table("fleet_problems") == (revision >= "0007")
        if revision < "0007":
            with Store.open(as_text(url), create=False) as store, pytest.raises(NoDatabase, match="has no fleet yet"):
                _ = store.fleet
        Store.open(as_text(url)).close()
        with engine.begin() as connection:
            assert migrations.current(connection) == migrations.HEAD, "opening for writing migrates"
            later = INSERT_STUDY.format(id=3, m=8192, state="'finished'").replace("studies", "tuning_studies")
            connection.exec_driver_sql(later)  # a client that knows fewer columns goes on
            assert not {"studies", "trials"} & set(inspect(connection).get_table_names())
            seen = connection.exec_driver_sql("SELECT study, m, mode, microseconds FROM tuning_winners ORDER BY study")
            assert seen.fetchall() == [(2, 2048, "push", 100.0), (3, 8192, "push", 100.0)]
        with Store.open(as_text(url)) as store:
            assert sorted(entry.study_id for entry in store.entries()) == [2, 3]
            store.record(1, store.trials(1)[0])
            assert len(store.trials(1)) == 2 and condition(as_text(url)).trials == 2
            store.add_taxes(2, '{"first": 1}')
            store.add_taxes(2, '{"second": 2}')
            assert store.taxes(2) == '{"second": 2}' and store.taxes(1) is None


def test_a_lookup_in_an_older_database_is_exact_and_changes_no_byte(path: Path) -> None:
    url = URL.create("sqlite", database=str(path))
    with old_database(url, path, "0001"):
        before = path.read_bytes()
        entries = read_entries(str(path), "all_gather_gemm", "NVIDIA H200")
        forget_entries()
    key = CacheKey("all_gather_gemm", '{"m":2048}', 8, "NVIDIA H200", "sm_90", "nvlink", regime="graph")
    assert len(entries.of(key)) == 1
    with Store.open(path, create=False) as store:
        assert len(store.entries("all_gather_gemm", "NVIDIA H200")) == 1
        assert store.entries("all_gather_gemm", "MI300X") == store.entries("flash_decode") == []
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
        connection.execute("CREATE TABLE tuning_trials (in_the_way INTEGER)")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError, match="table tuning_trials already exists"):
            Store.open(path)
    assert path.read_bytes() == before


def test_a_renaming_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    url = URL.create("sqlite", database=str(path))
    with old_database(url, path, "0004") as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE tuning_trials (in_the_way INTEGER)")
        before = path.read_bytes()
        with pytest.raises(StoreError, match="there is already another table .* tuning_trials"):
            Store.open(path)
        assert path.read_bytes() == before
