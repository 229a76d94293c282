"""Runs written live into an Optuna storage: what is in it, what an interruption leaves, and storages that fail."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from small_space import BEST, Ranks, kept, run, time_of

from autotune.config import Config
from autotune.db import Store
from autotune.errors import StoreError
from autotune.outcome import Evaluation, Outcome
from autotune.tuning import live as live_module
from autotune.tuning.live import direct_storage, live_storage

CRASHING = Config({"mode": "push", "tile": 2, "unit": 2})
TOO_LARGE = Config({"mode": "push", "tile": 2, "unit": 256})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'optuna.db'}"


@pytest.fixture(autouse=True)
def _on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage on a busy disk is waited for."""
    monkeypatch.setattr(live_module, "LAST_SECONDS", 600.0)


def tuned(path: Path, url: str, ranks: Ranks, **options: Any) -> Any:
    """As the command does it: the database first, for both may be one file."""
    Store.open(path).close()
    with live_storage(url) as live:
        return run(path, ranks, live=live, **options)


def studies(url: str) -> list[optuna.Study]:
    storage = RDBStorage(url)
    return [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]


def test_every_trial_of_the_search_is_there_with_value_outcome_and_reason(path: Path, url: str) -> None:
    ranks = Ranks(fails={CRASHING: Outcome.CRASHED, TOO_LARGE: Outcome.OUT_OF_RESOURCES})
    result = tuned(path, url, ranks, trials=30)
    [study] = studies(url)
    searched = kept(path)
    assert [trial.params for trial in study.trials] == [dict(record.config) for record in searched]
    states = {Outcome.MEASURED: "COMPLETE", Outcome.CRASHED: "FAIL", Outcome.OUT_OF_RESOURCES: "PRUNED",
              Outcome.INVALID: "PRUNED"}  # fmt: skip
    for trial, record in zip(study.trials, searched, strict=True):
        evaluation = record.evaluation
        assert trial.state.name == states[evaluation.outcome]
        assert trial.value == (None if evaluation.latency is None else time_of(record.config))
        assert (trial.user_attrs["mode"], trial.user_attrs["outcome"]) == (record.config["mode"], evaluation.outcome)
        assert (trial.user_attrs["source"], trial.user_attrs.get("reason", "")) == (record.source, evaluation.reason)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED}
    assert study.best_value == min(time_of(c) for c in ranks.configs if c not in ranks.fails)
    assert study.user_attrs["winner"] == dict(result.entry.winner.config) and study.user_attrs["bsp, µs"] == 300.0
    assert study.study_name.startswith("small dtype=bf16 width=1024 on 2 × cpu-interpreter, pipelined, 20")
    assert study.metric_names == ["latency, µs"]
    # The parameters are categories, which Optuna can weigh.
    distributions = {name: each for trial in study.trials for name, each in trial.distributions.items()}
    assert distributions["mode"] == optuna.distributions.CategoricalDistribution(("bsp", "push"))
    assert distributions["tile"] == optuna.distributions.CategoricalDistribution((2, 4, 8, 16, 32, 64, 128, 256))
    assert study.best_trial.params == dict(BEST)


def test_a_run_that_goes_on_goes_on_there_and_what_was_missed_is_added(path: Path, url: str) -> None:
    tuned(path, url, Ranks(raises={6: KeyboardInterrupt}))
    interrupted = len(studies(url)[0].trials)
    run(path, Ranks(raises={5: KeyboardInterrupt}))  # without the storage
    tuned(path, url, Ranks())
    [study] = studies(url)
    assert 0 < interrupted < len(study.trials) == len(kept(path))
    assert Counter(str(t.params) for t in study.trials) == Counter(str(dict(record.config)) for record in kept(path))
    tuned(path, url, Ranks(), force=True, trials=3)
    assert len(studies(url)) == 2, "another study of the same problem"


def test_values_are_those_of_the_regime_and_a_trial_lasts_as_long_as_its_evaluation(path: Path, url: str) -> None:
    class Hosted(Ranks):
        """The host takes longer than the device."""

        def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
            found = super().evaluate(config, seed, plan)
            latency = replace(found.latency, host=1000.0 + found.latency.median)
            return replace(found, latency=latency, seconds={"compile": 1.0, "check": 2.0, "total": 7.0})

    tuned(path, url, Hosted(), trials=3)
    [study] = studies(url)
    ran = [trial for trial in study.trials if trial.value is not None]
    assert [trial.value for trial in ran] == [trial.user_attrs["device, µs"] + 1000.0 for trial in ran]
    assert all(trial.value == trial.user_attrs["host, µs"] for trial in ran)
    assert {trial.duration for trial in ran} == {timedelta(seconds=7)}
    assert study.user_attrs["bsp, µs"] == 1300.0 and study.user_attrs["winner, µs"] == min(each.value for each in ran)


class Full(RDBStorage):
    """A storage that fails after so many trials."""

    left = 3

    def _create_new_trial(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise sqlite3.OperationalError("database or disk is full")
        return super()._create_new_trial(*arguments, **options)


def test_a_storage_that_fails_midway_is_warned_of_once_and_nothing_of_ours_is_lost(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_module, "RDBStorage", Full)
    with caplog.at_level(logging.WARNING, "autotune"):
        result = tuned(path, url, Ranks())
    assert result.entry is not None and len(kept(path)) >= 20 and len(studies(url)[0].trials) == 3
    [warning] = caplog.messages
    assert url in warning


def test_a_storage_that_does_not_answer_holds_nothing_up_for_long(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program holds the file's lock all the while."""
    monkeypatch.setattr(live_module, "LAST_SECONDS", 0.2)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        with caplog.at_level(logging.WARNING, "autotune"), live_storage(url) as live:
            other.execute("BEGIN EXCLUSIVE")
            result = run(path, Ranks(), live=live)
        other.execute("ROLLBACK")
    assert result.entry is not None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "url",
    [
        "nonsense", "sqlite://", "sqlite:////nowhere/at/all.db", "postgresql://me:secret@localhost:1/db",
        "oracle://me:secret@host/db", "redis://host",
    ],
)  # fmt: skip
def test_a_storage_that_cannot_be_opened_is_refused_and_no_password_is_shown(url: str) -> None:
    with pytest.raises(StoreError) as caught, live_storage(url):
        raise AssertionError("it opened")
    assert "secret" not in str(caught.value)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_no_password_is_shown_of_a_storage_that_fails_later_either(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"), dispose=lambda: None)
    monkeypatch.setattr(live_module, "RDBStorage", lambda url, engine_kwargs: SimpleNamespace(engine=engine))

    def gone() -> None:
        raise StorageInternalError("the server is gone")

    with direct_storage("postgresql://me:secret@host/db") as storage, pytest.raises(StoreError) as caught:
        storage.put(gone)
    assert "me:***@host/db" in str(caught.value)
