"""Studies of several workloads in one Optuna storage, each with the values that occur in its own trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from sample_entries import make_entry

from autotune.config import Config
from autotune.db import Entry, Store, TrialRecord
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.sharing.optuna_file import observed_space, write_optuna
from autotune.tuning.finals import FINAL


def trial(source: str = "search", round: int = 0, **values: Any) -> TrialRecord:
    config = Config({"mode": "push", **values})
    latency = Latency(9.0, 9.0, 9.0, 0.0, 5)
    return TrialRecord(config, Evaluation(Outcome.MEASURED, latency=latency), source, round)


def test_values_that_are_written_alike_are_told_apart() -> None:
    trials = [trial(x=value, size=size) for value, size in ((1, 128), (True, 16), ("1", 64), (1, 16))]
    found = observed_space(trials).dimensions
    assert sorted(map(repr, found["x"].values)) == ["'1'", "1", "True"] and not found["x"].ordinal
    assert found["size"].values == (16, 64, 128) and found["size"].ordinal
    flags = observed_space([trial(even=True), trial(even=False)]).dimensions["even"]
    assert not flags.ordinal and set(flags.values) == {True, False}


def test_each_study_has_its_own_trials_and_the_finals_are_none(tmp_path: Path) -> None:
    with Store.open(tmp_path / "cache.db") as store:
        entries: list[Entry] = []
        for m, tried in ((64, [trial(block_m=16), trial(block_m=32)]), (128, [trial(tile="a"), trial(tile="b")])):
            one = make_entry(m=m)
            study = store.study(one.key, one.provenance, seed=0, space_size=9)
            for each in [*tried, trial(FINAL, 1, **{k: v for k, v in tried[0].config.items() if k != "mode"})]:
                store.record(study.id, each)
            store.finish(study.id, one.winner)
        entries = store.entries()
        for _ in range(2):
            write_optuna(store, entries, file := tmp_path / "optuna.db")
    url = f"sqlite:///{file}"
    studies = [optuna.load_study(study_name=name, storage=url) for name in optuna.get_all_study_names(url)]
    assert [len(study.trials) for study in studies] == [2, 2], "written again it adds nothing"
    found = {frozenset(name for each in study.trials for name in each.params) for study in studies}
    assert found == {frozenset({"mode", "block_m"}), frozenset({"mode", "tile"})}
