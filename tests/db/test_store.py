"""Studies, trials, winners and entries through the store's door."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
import statistics
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, event

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, StudyRecord, TrialRecord, Winner, rows
from autotune.errors import StoreError
from autotune.machine import H100
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.problem import Problem, size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemm(Problem):
    """Stands for a workload's problem."""

    workload = "gemm"
    m: int = size("rows")


def begin(store: Store, key: CacheKey, provenance: Provenance) -> StudyRecord:
    return store.study(key, provenance, seed=11, space_size=5832)


TEXT = {bytes: "CAST(? AS TEXT)", str: "?", type(None): "?"}
"""SQL that stores a value without conversion."""


def as_text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def change(path: Path, statement: str, *values: object) -> None:
    """Write behind the store's back."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, values)
        connection.commit()


def just_now(moment: datetime | None) -> bool:
    return moment is not None and timedelta(0) <= datetime.now(UTC) - moment < timedelta(minutes=1)


def test_a_new_study_holds_what_it_was_given(store: Store, key: CacheKey, provenance: Provenance) -> None:
    study = begin(store, key, provenance)
    assert (study.key, study.provenance, study.seed, study.space_size) == (key, provenance, 11, 5832)
    assert (study.state, study.winner) == ("running", None)
    assert just_now(study.created_at)
    assert store.studies() == [study]


def test_the_same_key_and_provenance_find_the_same_study(store: Store, key: CacheKey, provenance: Provenance) -> None:
    study = begin(store, key, provenance)
    assert store.study(key, provenance, seed=99, space_size=1) == study


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CacheKey) if field.name != "problem"])
def test_every_field_of_the_key_makes_another_study(
    store: Store, key: CacheKey, provenance: Provenance, field: str
) -> None:
    changed: dict[str, Any] = {field: {"world_size": 4, "regime": "graph"}.get(field, "other")}
    other = dataclasses.replace(key, **changed)
    assert begin(store, key, provenance).id != begin(store, other, provenance).id


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Provenance)])
def test_every_field_of_the_provenance_makes_another_study(
    store: Store, key: CacheKey, provenance: Provenance, field: str
) -> None:
    other = dataclasses.replace(provenance, **{field: "other"})
    assert begin(store, key, provenance).id != begin(store, key, other).id


def test_a_seed_beyond_64_bits_is_refused(store: Store, key: CacheKey, provenance: Provenance) -> None:
    with pytest.raises(StoreError, match=f"seed={2**63}: must be a 64-bit integer"):
        store.study(key, provenance, seed=2**63, space_size=1)
    assert store.study(key, provenance, seed=-(2**63), space_size=2**63 - 1).space_size == 2**63 - 1


def test_a_trial_comes_back_with_every_field(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord
) -> None:
    study = begin(store, key, provenance)
    store.record(study.id, trial)
    [found] = store.trials(study.id)
    assert found == trial
    assert found.config["split"] is True and found.predicted == 391.5
    assert found.id is not None and just_now(found.created_at)


def test_a_prediction_that_is_no_number_is_a_bug(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord
) -> None:
    study = begin(store, key, provenance)
    with pytest.raises(ValueError, match="not a number"):
        store.record(study.id, dataclasses.replace(trial, predicted=math.nan))
    assert store.trials(study.id) == []


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.MEASURED])
@pytest.mark.parametrize("error", [None, 0.0, 1e-300, math.inf])
def test_a_trial_without_latency_comes_back(
    store: Store, key: CacheKey, provenance: Provenance, outcome: Outcome, error: float | None
) -> None:
    study = begin(store, key, provenance)
    failed = TrialRecord(Config({}), Evaluation(outcome, 'tile_m=64: "no" → müßig\nsecond line', error=error))
    store.record(study.id, failed)
    assert store.trials(study.id) == [failed]


def test_an_error_that_is_no_number_comes_back(store: Store, key: CacheKey, provenance: Provenance) -> None:
    study = begin(store, key, provenance)
    store.record(study.id, TrialRecord(Config({}), Evaluation(Outcome.WRONG_RESULT, "NaN", error=math.nan)))
    [found] = store.trials(study.id)
    assert found.evaluation.error is not None and math.isnan(found.evaluation.error)


def test_a_reason_that_is_no_text_stays_legible(store: Store, key: CacheKey, provenance: Provenance) -> None:
    study = begin(store, key, provenance)
    store.record(study.id, TrialRecord(Config({}), Evaluation(Outcome.CRASHED, "bad \udcff byte, nul \0 too")))
    assert store.trials(study.id)[0].evaluation.reason == "bad \\udcff byte, nul \\x00 too"


def test_a_latency_that_is_no_number_is_a_bug(
    store: Store, key: CacheKey, provenance: Provenance, latency: Latency
) -> None:
    study = begin(store, key, provenance)
    broken = Evaluation(Outcome.MEASURED, latency=dataclasses.replace(latency, low=math.nan))
    with pytest.raises(ValueError, match="not a number"):
        store.record(study.id, TrialRecord(Config({}), broken))
    assert store.trials(study.id) == []


def test_trials_keep_their_order_and_repetitions(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord
) -> None:
    study = begin(store, key, provenance)
    again = dataclasses.replace(trial, source="finalist", number=None)
    for record in (trial, again, trial, again):
        store.record(study.id, record)
    assert store.trials(study.id) == [trial, again, trial, again]


def test_trials_stay_with_their_study(store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord) -> None:
    one, other = begin(store, key, provenance), begin(store, dataclasses.replace(key, arch="sm_100"), provenance)
    store.record(one.id, trial)
    assert store.trials(other.id) == []


def test_a_reopened_database_goes_on_where_it_was(
    url: URL, key: CacheKey, provenance: Provenance, trial: TrialRecord, winner: Winner
) -> None:
    with Store.open(as_text(url)) as store:
        study = begin(store, key, provenance)
        store.record(study.id, trial)
    with Store.open(as_text(url)) as store:
        assert begin(store, key, provenance) == study
        store.record(study.id, trial)
        assert store.trials(study.id) == [trial, trial]
        store.finish(study.id, winner)
    with Store.open(as_text(url), create=False) as store:
        assert begin(store, key, provenance) == dataclasses.replace(study, state="finished", winner=winner)


def test_finishing_makes_the_entry(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord, winner: Winner
) -> None:
    study = begin(store, key, provenance)
    for _ in range(3):
        store.record(study.id, trial)
    assert store.entries() == [] and store.entry(key, provenance) is None
    store.finish(study.id, winner)
    entry = store.entry(key, provenance)
    assert entry is not None and store.entries() == [entry]
    assert (entry.key, entry.provenance, entry.winner, entry.study_id, entry.trials) == (
        key, provenance, winner, study.id, 3,
    )  # fmt: skip
    assert just_now(entry.finished_at)
    assert store.entry(key, dataclasses.replace(provenance, torch="2.12.0")) is None
    assert store.entry(dataclasses.replace(key, world_size=4), provenance) is None


def test_a_finished_study_may_go_on_and_finish_again(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord, winner: Winner
) -> None:
    study = begin(store, key, provenance)
    store.finish(study.id, winner)
    store.record(study.id, trial)
    better = dataclasses.replace(winner, config=Config({"mode": "pull"}))
    store.finish(study.id, better)
    [entry] = store.entries()
    assert (entry.winner, entry.trials) == (better, 1)


def test_forgetting_starts_afresh_and_deletes_nothing(
    store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord, winner: Winner
) -> None:
    old = begin(store, key, provenance)
    store.record(old.id, trial)
    store.finish(old.id, winner)
    store.forget(old.id)
    store.forget(old.id)
    new = store.study(key, provenance, seed=12, space_size=5832)
    assert new.id != old.id and (new.seed, new.state) == (12, "running")
    assert begin(store, key, provenance) == new
    assert store.trials(old.id) == [trial] and store.trials(new.id) == []
    assert [study.state for study in store.studies()] == ["superseded", "running"]
    assert store.studies()[0].winner == winner


def test_the_cache_serves_the_old_winner_until_the_new_one_is_found(
    store: Store, key: CacheKey, provenance: Provenance, winner: Winner
) -> None:
    old = begin(store, key, provenance)
    store.finish(old.id, winner)
    store.forget(old.id)
    new = begin(store, key, provenance)
    assert [entry.study_id for entry in store.entries()] == [old.id]
    better = dataclasses.replace(winner, config=Config({"mode": "pull"}))
    store.finish(new.id, better)
    [entry] = store.entries()
    assert (entry.study_id, entry.winner) == (new.id, better)
    assert store.entry(key, provenance) == entry


def test_finishing_a_superseded_study_leaves_it_superseded(
    store: Store, key: CacheKey, provenance: Provenance, winner: Winner
) -> None:
    old = begin(store, key, provenance)
    store.forget(old.id)
    begin(store, key, provenance)
    store.finish(old.id, winner)
    assert [study.state for study in store.studies()] == ["superseded", "running"]


def test_entries_come_newest_first_by_workload_and_device(
    store: Store, key: CacheKey, provenance: Provenance, winner: Winner
) -> None:
    keys = [key, dataclasses.replace(key, workload="flash_decode"), dataclasses.replace(key, device="MI300X")]
    for each in keys:
        store.finish(begin(store, each, provenance).id, winner)
    begin(store, dataclasses.replace(key, arch="sm_100"), provenance)
    assert [entry.key for entry in store.entries()] == keys[::-1]
    assert [entry.key for entry in store.entries("all_gather_gemm")] == [keys[2], keys[0]]
    assert [entry.key for entry in store.entries(device="MI300X")] == [keys[2]]
    assert store.entries("flash_decode", "MI300X") == []


def test_entries_take_one_query(store: Store, key: CacheKey, provenance: Provenance, winner: Winner) -> None:
    for world_size in (2, 4, 8):
        store.finish(begin(store, dataclasses.replace(key, world_size=world_size), provenance).id, winner)
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(store._database.engine, "before_cursor_execute", note)
    assert len(store.entries()) == 3
    assert [each for each in statements if not each.startswith(("BEGIN", "SET"))] == [statements[-1]]


def test_nearest_is_the_entry_with_the_fewest_differences(
    store: Store, key: CacheKey, provenance: Provenance, winner: Winner
) -> None:
    assert store.nearest(key) is None
    far = dataclasses.replace(key, device="MI300X", arch="gfx942", interconnect="xgmi")
    near = dataclasses.replace(key, problem=key.problem.replace("4096", "8192"))
    another = dataclasses.replace(key, workload="flash_decode")
    for each in (near, far, another):
        store.finish(begin(store, each, provenance).id, winner)
    found = store.nearest(key)
    assert found is not None
    assert key.differences(found.key) == {"m": ("4096", "8192")}
    stale = store.nearest(near)
    assert stale is not None and stale.key == near


def test_a_key_is_made_of_a_problem_and_a_machine(store: Store, provenance: Provenance) -> None:
    key = CacheKey.of(Gemm(m=64, world_size=2), H100)
    assert key == CacheKey(
        "gemm", '{"dtype":"bf16","m":64,"world_size":2}', 2, "NVIDIA H100 80GB HBM3", "sm_90", "nvlink"
    )
    assert begin(store, key, provenance).key == key


@pytest.mark.parametrize("method", ["record", "trials", "finish", "forget"])
def test_an_unknown_study_is_refused(store: Store, trial: TrialRecord, winner: Winner, method: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"record": (trial,), "finish": (winner,)}
    with pytest.raises(StoreError, match="^database .* has no study 41$"):
        getattr(store, method)(41, *arguments.get(method, ()))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("config", "{"),
        ("config", "[1]"),
        ("config", '{"tile_m":1.5}'),
        ("config", b"\x00\xff"),
        ("outcome", "won"),
        ("median", "fast"),
        ("median", None),
        ("by_rank", None),
        ("by_rank", "7"),
        ("error", "small"),
        ("seconds", "null"),
        ("created_at", "yesterday"),
    ],
)
def test_a_damaged_trial_is_left_out_and_named_once(
    path: Path, sqlite_store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord, column: str,
    value: object, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    study = begin(sqlite_store, key, provenance)
    for _ in range(3):
        sqlite_store.record(study.id, trial)
    change(path, f"UPDATE tuning_trials SET {column} = ? WHERE id = 2", value)
    for _ in range(2):
        assert [each.id for each in sqlite_store.trials(study.id)] == [1, 3]
    [message] = caplog.messages
    assert "cache.db: row 2 of table tuning_trials is damaged (" in message
    assert message.endswith("skipped; repair it or delete it: DELETE FROM tuning_trials WHERE id = 2;")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("winner_config", "{"),
        ("winner_config", None),
        ("winner_latency", "{}"),
        ("winner_latency", '{"median":{}}'),
        ("winner_baselines", '{"eager":3}'),
        ("winner_limits", "[]"),
        ("problem", '{"m":4096'),
        ("problem", '{ "m": 4096}'),
        ("winner_latency", '{"median":0,"low":0,"high":0,"skew":0,"iterations":1,"by_rank":[]}'),
        ("winner_latency", f'{{"median":1{"0" * 400},"low":0,"high":0,"skew":0,"iterations":1,"by_rank":[]}}'),
        ("winner_config", "[" * 100_000),
        ("device", b"\xff\xfe"),
        ("seed", "many"),
        ("state", "asleep"),
        ("finished_at", "never"),
        ("finished_at", "0001-01-01T00:00:00+14:00"),
    ],
)
def test_a_damaged_study_costs_one_miss_and_one_warning(
    path: Path, sqlite_store: Store, key: CacheKey, provenance: Provenance, winner: Winner, column: str, value: object,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    other = dataclasses.replace(key, arch="sm_100")
    for each in (key, other):
        sqlite_store.finish(begin(sqlite_store, each, provenance).id, winner)
    change(path, f"UPDATE tuning_studies SET {column} = {TEXT[type(value)]} WHERE id = 1", value)
    for _ in range(2):
        assert [entry.key for entry in sqlite_store.entries()] == [other]
        assert [study.key for study in sqlite_store.studies()] == [other]
        assert sqlite_store.entry(key, provenance) is None
    [message] = caplog.messages
    assert "cache.db: row 1 of table tuning_studies is damaged (" in message
    assert message.endswith("DELETE FROM tuning_trials WHERE study_id = 1; DELETE FROM tuning_studies WHERE id = 1;")
    study = begin(sqlite_store, key, provenance)  # tuning the same problem
    assert study.id == 3 and study.state == "running"
    sqlite_store.finish(study.id, winner)
    assert {entry.study_id for entry in sqlite_store.entries()} == {2, 3}


def test_what_a_damaged_winner_superseded_is_not_served(
    path: Path, sqlite_store: Store, key: CacheKey, provenance: Provenance, winner: Winner
) -> None:
    for _ in range(2):
        study = begin(sqlite_store, key, provenance)
        sqlite_store.finish(study.id, winner)
        sqlite_store.forget(study.id)
    change(path, "UPDATE tuning_studies SET winner_latency = '{}' WHERE id = 2")
    assert sqlite_store.entries() == [] and sqlite_store.entry(key, provenance) is None


def finish(store: Store, study: StudyRecord, winner: Winner, **changes: str) -> Winner:
    named = dataclasses.replace(winner, config=Config({"mode": "push", **changes}))
    store.finish(study.id, named)
    return named


def test_a_clock_that_is_set_back_serves_no_older_winner(
    store: Store, key: CacheKey, provenance: Provenance, winner: Winner, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = dataclasses.replace(provenance, torch="1.0")
    first = begin(store, key, provenance)
    finish(store, first, winner, by="first")
    store.forget(first.id)
    monkeypatch.setattr(rows, "now", lambda: "2001-01-01T00:00:00+00:00")
    newer = finish(store, begin(store, key, provenance), winner, by="second")
    assert [entry.winner for entry in store.entries()] == [newer]
    newest = finish(store, begin(store, key, stale), winner, by="third")
    assert [entry.winner for entry in store.entries()] == [newest, newer], "in the order in which they finished"


def test_a_superseded_study_that_finishes_later_is_not_served(
    store: Store, key: CacheKey, provenance: Provenance, winner: Winner
) -> None:
    slow = begin(store, key, provenance)
    store.forget(slow.id)
    quick = begin(store, key, provenance)
    better = finish(store, quick, winner, by="the one in its place")
    finish(store, slow, winner, by="the superseded one")
    assert [entry.winner for entry in store.entries()] == [better]
    found = store.entry(key, provenance)
    assert found is not None and found.winner == better
    store.forget(quick.id)
    begin(store, key, provenance)
    assert [entry.winner for entry in store.entries()] == [better], "until the next one finishes"


def test_recording_and_opening_are_quick(
    path: Path, sqlite_store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord
) -> None:
    study = begin(sqlite_store, key, provenance)

    def seconds_to_record() -> float:
        start = time.process_time()
        sqlite_store.record(study.id, trial)
        return time.process_time() - start

    def seconds_to_open() -> float:
        start = time.process_time()
        with Store.open(path):
            return time.process_time() - start

    assert statistics.median(seconds_to_record() for _ in range(50)) < 0.010
    assert statistics.median(seconds_to_open() for _ in range(10)) < 0.030
