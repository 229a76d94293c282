"""PostgreSQL's additions to the store's contract: concurrent processes, bounded waits, its own refusals; and Optuna's
tables in the same database.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import postgres_server
import pytest
from optuna.storages import RDBStorage
from sample import KEY, PROVENANCE, TRIAL, WINNER
from sqlalchemy import URL, create_engine, event, text
from studies import fill, refusal
from writers import started

from autotune.db import Entry, Store
from autotune.db.engines import condition, postgresql
from autotune.db.engines.database import WRITING
from autotune.errors import NoDatabase, StoreError


@pytest.fixture
def database(server: postgres_server.Server) -> URL:  # type: ignore[misc]
    with server.new_database() as url:
        yield url


def test_a_plain_url_means_psycopg(database: URL) -> None:
    with Store.open(str(database.set(drivername="postgresql"))) as store:
        store.study(KEY, PROVENANCE, seed=1, space_size=1)
    with Store.open(str(database), create=False) as store:
        assert len(store.studies()) == 1


def test_a_lookup_makes_no_tables(database: URL) -> None:
    with pytest.raises(NoDatabase):
        Store.open(str(database), create=False)
    assert (condition(str(database)).has_tables, condition(str(database)).trials) == (False, 0)


def fill_theirs(url: str) -> int:
    """Two trials more in Optuna's tables; how many there are."""
    storage = RDBStorage(url)
    study = optuna.create_study(storage=storage, study_name="theirs", load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    count = len(study.trials)
    storage.engine.dispose()
    return count


def test_a_database_that_optuna_has_made_takes_our_tables_too(database: URL) -> None:
    """To a file that Optuna has made nothing is added; that Optuna adds its tables to ours, test_live holds."""
    url = str(database)
    assert fill_theirs(url) == 2
    fill(url, 1)
    assert fill_theirs(url) == 4
    with Store.open(url, create=False) as store:
        assert [entry.winner for entry in store.entries()] == [WINNER] and store.trials(1) == [TRIAL]


def test_processes_make_and_fill_an_empty_database_at_once(database: URL) -> None:
    processes, trials = 6, 10
    with started(processes, trials) as writers:
        for writer in writers:
            writer.tell(str(database))
        for writer in writers:
            assert [writer.heard() for _ in range(trials + 1)] == [*map(str, range(trials)), "done"]
    with Store.open(str(database), create=False) as store:
        [study] = store.studies()
        assert Counter(trial.number for trial in store.trials(study.id)) == dict.fromkeys(range(trials), processes)


def test_waiting_for_another_writer_has_an_end(database: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "BUSY_SECONDS", 1)
    other = create_engine(database)
    with Store.open(str(database)) as store, other.connect() as connection:
        connection.execute(text(f"SELECT pg_advisory_lock({postgresql.WRITERS})"))
        assert store.studies() == []
        with pytest.raises(StoreError, match="locked"):
            store.study(KEY, PROVENANCE, seed=1, space_size=1)
        connection.execute(text("SELECT pg_advisory_unlock_all()"))
        store.study(KEY, PROVENANCE, seed=1, space_size=1)
    other.dispose()


def test_a_read_only_database_is_read_but_not_written(server: postgres_server.Server, database: URL) -> None:
    with Store.open(str(database)) as store:
        store.finish(store.study(KEY, PROVENANCE, seed=1, space_size=1).id, WINNER)
    server.run(f"ALTER DATABASE {database.database} SET default_transaction_read_only = on")
    with Store.open(str(database)) as store:
        assert [entry.winner for entry in store.entries()] == [WINNER]
        with pytest.raises(StoreError, match="read-only"):
            store.record(1, TRIAL)


def test_a_user_without_rights_is_told_so(server: postgres_server.Server, database: URL) -> None:
    server.run("DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    assert "rights" in refusal(str(database.set(username="guest")))
    Store.open(str(database)).close()
    with pytest.raises(StoreError, match="SELECT"):
        Store.open(str(database.set(username="guest")), create=False).entries()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    url = URL.create("postgresql", "me", password=None, database="x", query={"host": str(tmp_path)})
    assert "secret" not in refusal(url.set(password="secret").render_as_string(False))


def test_a_server_that_restarts_is_waited_for_and_nothing_is_lost_or_doubled(
    server: postgres_server.Server, database: URL, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(str(database)) as store:
        study = store.study(KEY, PROVENANCE, seed=1, space_size=1)
        for number in range(20):
            if number in (5, 12):
                server.stop()
                restart = threading.Timer(1.0, server.start)
                restart.start()
            store.record(study.id, dataclasses.replace(TRIAL, number=number))
        restart.join()
        assert [each.number for each in store.trials(study.id)] == list(range(20))
        server.stop()
        restart = threading.Timer(1.0, server.start)
        restart.start()
        store.finish(study.id, WINNER)
        restart.join()
        assert [entry.winner for entry in store.entries()] == [WINNER]
    assert len(caplog.messages) == 3


@pytest.mark.parametrize("lost", ["record", "adopt", "study"])
def test_a_write_that_is_not_acknowledged_is_made_once(
    server: postgres_server.Server, database: URL, lost: str
) -> None:
    other = dataclasses.replace(KEY, arch="sm_100")
    entry = Entry(other, PROVENANCE, WINNER, 0, datetime.now(UTC), trials=1, seed=0, space_size=1)
    with Store.open(str(database)) as store:
        study = store.study(KEY, PROVENANCE, seed=1, space_size=1)
        losses = []

        def lose(connection: Any) -> None:
            """The server has committed, and the connection breaks before it says so."""
            if connection.get_execution_options().get(WRITING) and not losses:
                losses.append(connection)
                connection.exec_driver_sql("COMMIT")
                server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

        event.listen(store._database.engine, "commit", lose)
        if lost == "record":
            store.record(study.id, TRIAL)
        elif lost == "adopt":
            store.adopt([(entry, True)])
        else:
            store.study(other, PROVENANCE, seed=1, space_size=1)
        assert len(losses) == 1
        assert len(store.trials(study.id)) == (lost == "record")
        assert len(store.studies()) == 1 + (lost != "record")
        assert {each.state for each in store.studies()} <= {"running", "finished"}, "it has not superseded itself"


def test_a_server_is_silent(server: postgres_server.Server, database: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "STATEMENT_SECONDS", 2.0)
    monkeypatch.setattr("autotune.db.engines.database.PATIENCE", 1.0)
    url = str(database.update_query_dict({"connect_timeout": "2"}))
    with Store.open(url) as store:
        study = store.study(KEY, PROVENANCE, seed=1, space_size=1)
        with server.frozen():
            for ask in (lambda: store.record(study.id, TRIAL), store.studies, lambda: Store.open(url, create=False)):
                with pytest.raises(StoreError, match="not answered|timeout"):
                    ask()
        assert store.studies() == [study], "it answers again"


def test_a_server_stays_away(server: postgres_server.Server, database: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.db.engines.database.PATIENCE", 1.0)
    with Store.open(str(database)) as store:
        study = store.study(KEY, PROVENANCE, seed=1, space_size=1)
        server.stop()
        try:
            with pytest.raises(StoreError, match="connection"):
                store.record(study.id, TRIAL)
        finally:
            server.start()
        assert store.trials(study.id) == []
