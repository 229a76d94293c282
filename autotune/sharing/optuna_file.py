"""Finished studies as an Optuna storage in a file of its own, for optuna-dashboard and Optuna's plots."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from autotune.config import Value
from autotune.db import Entry, Store, TrialRecord
from autotune.errors import InputError
from autotune.search_spaces import Dimension, Space
from autotune.tuning.finals import FINAL
from autotune.tuning.live import direct_storage


def write_optuna(store: Store, entries: Sequence[Entry], file: Path) -> int:
    """Write the studies behind the entries; returns the number of trials. A study that is in the file already gets what
    it lacks.

    Raises InputError for a file that is no Optuna storage, and where no study has trials: they are where it was tuned.
    """
    _check(file)
    records = {record.id: record for record in store.studies()}
    wanted = [(entry, trials) for entry in entries if (trials := store.trials(entry.study_id))]
    if not wanted:
        raise InputError("these entries were imported; their trials are in the database that they were tuned in")
    with direct_storage(f"sqlite:///{file}") as storage:
        for entry, trials in wanted:
            study = storage.study(records[entry.study_id], observed_space(trials), trials)
            study.finish(entry.winner)
    return sum(trial.source != FINAL for _, trials in wanted for trial in trials)


def observed_space(trials: Sequence[TrialRecord]) -> Space:
    """The values that occur in the trials, the same for every study of any version: a space may have changed since."""
    values: dict[str, dict[str, Value]] = {"mode": {}}
    for trial in trials:
        for name, value in trial.config.items():
            values.setdefault(name, {})[repr(value)] = value
    return Space(*(_dimension(name, list(found.values())) for name, found in values.items() if found))


def _dimension(name: str, values: list[Value]) -> Dimension:
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if len(numbers) == len(values):
        return Dimension(name, tuple(sorted(numbers)))
    return Dimension(name, tuple(sorted(values, key=str)), ordinal=False)


def _check(file: Path) -> None:
    """Raise InputError for a file that exists and is no Optuna storage: Optuna would put its tables into it."""
    if not file.parent.is_dir():
        raise InputError(f"folder {file.parent}: No such file or directory")
    if not file.exists() or file.stat().st_size == 0:
        return
    try:
        with closing(sqlite3.connect(f"file:{file.resolve()}?mode=ro", uri=True)) as connection:
            [tables] = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'version_info'").fetchone()
    except sqlite3.Error:
        tables = 0
    if not tables:
        raise InputError(f"file {file} exists and is no Optuna storage; name a new file")
