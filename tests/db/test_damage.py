"""Damaged rows: each costs itself, once and by name."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sample import KEY, PROVENANCE, TRIAL, WINNER
from studies import begin

from autotune.db import Store

TEXT = {bytes: "CAST(? AS TEXT)", str: "?", type(None): "?"}
"""SQL that stores a value without conversion."""


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, values)
        connection.commit()


@pytest.mark.parametrize(
    ("column", "value"),
    [("config", "{"), ("config", b"\x00\xff"), ("outcome", "won"), ("median", "fast"), ("by_rank", None)],
)
def test_a_damaged_trial_is_left_out_and_named_once(
    path: Path, sqlite_store: Store, column: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    study = begin(sqlite_store)
    for _ in range(3):
        sqlite_store.record(study.id, TRIAL)
    change(path, f"UPDATE tuning_trials SET {column} = ? WHERE id = 2", value)
    for _ in range(2):
        assert [each.id for each in sqlite_store.trials(study.id)] == [1, 3]
    [message] = caplog.messages
    assert "DELETE FROM tuning_trials WHERE id = 2;" in message


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("winner_config", "{"),
        ("winner_latency", '{"median":{}}'),
        ("problem", '{ "m": 4096}'),
        ("winner_latency", '{"median":0,"low":0,"high":0,"skew":0,"iterations":1,"by_rank":[]}'),
        ("winner_latency", f'{{"median":1{"0" * 400},"low":0,"high":0,"skew":0,"iterations":1,"by_rank":[]}}'),
        ("winner_config", "[" * 100_000),
        ("device", b"\xff\xfe"),
        ("finished_at", "0001-01-01T00:00:00+14:00"),
    ],
)
def test_a_damaged_study_costs_one_miss_and_one_warning(
    path: Path, sqlite_store: Store, column: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    other = dataclasses.replace(KEY, arch="sm_100")
    for each in (KEY, other):
        sqlite_store.finish(begin(sqlite_store, each).id, WINNER)
    change(path, f"UPDATE tuning_studies SET {column} = {TEXT[type(value)]} WHERE id = 1", value)
    for _ in range(2):
        assert [entry.key for entry in sqlite_store.entries()] == [other]
        assert [study.key for study in sqlite_store.studies()] == [other]
        assert sqlite_store.entry(KEY, PROVENANCE) is None
    [message] = caplog.messages
    assert "DELETE FROM tuning_studies WHERE id = 1;" in message
    study = begin(sqlite_store)  # tuning the same problem
    assert study.id == 3 and study.state == "running"
    sqlite_store.finish(study.id, WINNER)
    assert {entry.study_id for entry in sqlite_store.entries()} == {2, 3}


def test_what_a_damaged_winner_superseded_is_not_served(path: Path, sqlite_store: Store) -> None:
    for _ in range(2):
        study = begin(sqlite_store)
        sqlite_store.finish(study.id, WINNER)
        sqlite_store.forget(study.id)
    change(path, "UPDATE tuning_studies SET winner_latency = '{}' WHERE id = 2")
    assert sqlite_store.entries() == [] and sqlite_store.entry(KEY, PROVENANCE) is None
