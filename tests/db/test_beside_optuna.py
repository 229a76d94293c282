"""Our tables and those of an Optuna storage in one database: neither minds the other."""

from __future__ import annotations

import optuna
from optuna.storages import RDBStorage
from postgres_server import Server
from sample import TRIAL, WINNER
from studies import as_text, fill

from autotune.db import Store


def fill_theirs(url: str) -> int:
    """Two trials more; how many there are."""
    storage = RDBStorage(url)
    study = optuna.create_study(storage=storage, study_name="theirs", load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    count = len(study.trials)
    storage.engine.dispose()
    return count


def test_a_database_that_optuna_has_made_takes_our_tables_too(server: Server) -> None:
    """To a file that Optuna has made nothing is added; that Optuna adds its tables to ours, test_live holds."""
    with server.new_database() as url:
        text = as_text(url)
        assert fill_theirs(text) == 2
        fill(text, 1)
        assert fill_theirs(text) == 4
        with Store.open(text, create=False) as store:
            assert [entry.winner for entry in store.entries()] == [WINNER] and store.trials(1) == [TRIAL]
