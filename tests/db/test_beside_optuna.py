"""Our tables and those of an Optuna storage in one database: neither minds the other."""

from __future__ import annotations

import optuna
from optuna.storages import RDBStorage
from sample import KEY, PROVENANCE, TRIAL, WINNER
from sqlalchemy import URL, create_engine, inspect

from autotune.db import Store
from autotune.db.models import Base


def fill_ours(url: str) -> None:
    with Store.open(url) as store:
        study = store.study(KEY, PROVENANCE, seed=1, space_size=9)
        store.record(study.id, TRIAL)
        store.finish(study.id, WINNER)


def fill_theirs(url: str) -> int:
    """Two trials more; how many there are."""
    storage = RDBStorage(url)
    study = optuna.create_study(storage=storage, study_name="theirs", load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    count = len(study.trials)
    storage.engine.dispose()
    return count


def test_whichever_comes_first(url: URL) -> None:
    text = url.render_as_string(hide_password=False)
    if url.get_backend_name() == "postgresql":
        assert fill_theirs(text) == 2  # to a file that Optuna has made nothing is added: it is another program's
    fill_ours(text)
    assert fill_theirs(text) == (4 if url.get_backend_name() == "postgresql" else 2)
    with Store.open(text, create=False) as store:
        assert [entry.winner for entry in store.entries()] == [WINNER] and store.trials(1) == [TRIAL]
    engine = create_engine(url)
    ours = set(Base.metadata.tables) | {"iris_autotune_version"}
    assert ours < set(inspect(engine).get_table_names()) > {"studies", "trials", "alembic_version"}
    engine.dispose()
