"""Studies, trials, winners and entries through the store's door, their view, damaged rows; and the store's speed."""

from __future__ import annotations

import copy
import dataclasses
import math
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from python_calls import python_calls
from sample import KEY, PROVENANCE, TRIAL, WINNER
from sqlalchemy import URL, create_engine, event
from studies import as_text, begin, just_now

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Store, StudyRecord, TrialRecord, Winner, rows
from autotune.errors import StoreError
from autotune.outcome import Evaluation, Latency, Outcome, Regime


def test_a_new_study_holds_what_it_was_given_and_is_found_by_it(store: Store) -> None:
    study = begin(store)
    assert (study.key, study.provenance, study.seed, study.space_size) == (KEY, PROVENANCE, 11, 5832)
    assert (study.state, study.winner) == ("running", None)
    assert just_now(study.created_at)
    assert store.studies() == [study]
    assert store.study(KEY, PROVENANCE, seed=99, space_size=1) == study


@pytest.mark.parametrize(
    ("of", "field"),
    [(of, each.name) for of in (CacheKey, Provenance) for each in dataclasses.fields(of) if each.name != "problem"],
)
def test_every_field_of_key_and_provenance_makes_another_study(store: Store, study: int, of: type, field: str) -> None:
    changed: dict[str, Any] = {field: {"world_size": 4, "regime": "graph"}.get(field, "other")}
    others = [dataclasses.replace(each, **changed) if isinstance(each, of) else each for each in (KEY, PROVENANCE)]
    assert begin(store, *others).id != study


def test_a_seed_beyond_64_bits_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="seed"):
        store.study(KEY, PROVENANCE, seed=2**63, space_size=1)
    assert store.study(KEY, PROVENANCE, seed=-(2**63), space_size=2**63 - 1).space_size == 2**63 - 1


def test_a_reopened_database_goes_on_where_it_was(url: URL) -> None:
    with Store.open(as_text(url)) as store:
        study = begin(store)
        store.record(study.id, TRIAL)
    with Store.open(as_text(url)) as store:
        assert begin(store) == study
        store.record(study.id, TRIAL)
        assert store.trials(study.id) == [TRIAL, TRIAL]
        store.finish(study.id, WINNER)
    with Store.open(as_text(url), create=False) as store:
        assert begin(store) == dataclasses.replace(study, state="finished", winner=WINNER)


def test_forgetting_starts_afresh_and_deletes_nothing(store: Store) -> None:
    old = begin(store)
    store.record(old.id, TRIAL)
    store.finish(old.id, WINNER)
    store.forget(old.id)
    store.forget(old.id)
    new = store.study(KEY, PROVENANCE, seed=12, space_size=5832)
    assert new.id != old.id and (new.seed, new.state) == (12, "running")
    assert begin(store) == new
    assert store.trials(old.id) == [TRIAL] and store.trials(new.id) == []
    assert [study.state for study in store.studies()] == ["superseded", "running"]
    assert store.studies()[0].winner == WINNER
    assert store.studies("running") == store.studies(number=new.id) == [new] and store.names() == {KEY.workload}


def test_an_attachment_is_of_one_study_and_the_last_of_its_kind_counts(store: Store) -> None:
    one, other = begin(store), begin(store, dataclasses.replace(KEY, world_size=4))
    store.attach(one.id, "taxes", '{"first": 1}')
    assert store.attached(one.id, "taxes") == '{"first": 1}' and store.attached(other.id, "taxes") is None
    store.attach(one.id, "taxes", '{"second": 2}')
    store.attach(other.id, "taxes", '{"other": 3}')
    store.attach(one.id, "timeline", '{"third": 3}')
    assert store.attached(one.id, "timeline") == '{"third": 3}' and store.attached(other.id, "timeline") is None
    assert store.attached(one.id, "taxes") == '{"second": 2}' and store.attached(other.id, "taxes") == '{"other": 3}'


@pytest.mark.parametrize("method", ["record", "trials", "finish", "forget"])
def test_an_unknown_study_is_refused(store: Store, method: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"record": (TRIAL,), "finish": (WINNER,)}
    with pytest.raises(StoreError, match="41"):
        getattr(store, method)(41, *arguments.get(method, ()))


def test_recording_and_opening_are_quick(path: Path, sqlite_store: Store) -> None:
    """By the Python functions that they enter, which hang on no machine's speed: some 1100 and 1000."""
    study = begin(sqlite_store)
    sqlite_store.record(study.id, TRIAL)

    def open_again() -> None:
        with Store.open(path):
            pass

    recording, opening = python_calls(lambda: sqlite_store.record(study.id, TRIAL)), python_calls(open_again)
    assert recording < 2500 and opening < 2500, (recording, opening)


def test_differences_descend_into_the_problem() -> None:
    other = dataclasses.replace(
        KEY, problem='{"dtype":"fp16","m":4096,"n":28672,"world_size":8,"z":true}', device="NVIDIA H100"
    )
    assert KEY.differences(other) == {
        "dtype": ("bf16", "fp16"),
        "k": ("8192", "absent"),
        "z": ("absent", "true"),
        "device": ("NVIDIA H200", "NVIDIA H100"),
    }


def test_the_world_size_is_one_difference() -> None:
    other = dataclasses.replace(KEY, problem=KEY.problem.replace('"world_size":8', '"world_size":4'), world_size=4)
    assert KEY.differences(other) == {"world_size": ("8", "4")}


@pytest.mark.parametrize("problem", ['{"n":1,"m":1}', "[1]", ""])
def test_a_problem_that_is_not_canonical_is_refused(problem: str) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(KEY, problem=problem)


def test_a_trial_comes_back_with_every_field(store: Store, study: int) -> None:
    store.record(study, TRIAL)
    [found] = store.trials(study)
    assert found == TRIAL
    assert found.config["split"] is True and found.predicted == 391.5
    assert found.id is not None and just_now(found.created_at)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.MEASURED])
def test_a_trial_without_latency_comes_back(store: Store, study: int, outcome: Outcome) -> None:
    reason = 'tile_m=64: "no" → müßig\nsecond line'
    failed = [
        TrialRecord(Config({}), Evaluation(outcome, reason, error=error)) for error in (None, 0.0, 1e-300, math.inf)
    ]
    for each in failed:
        store.record(study, each)
    assert store.trials(study) == failed


def test_an_error_may_be_no_number_and_a_reason_no_text(store: Store, study: int) -> None:
    strange = Evaluation(Outcome.CRASHED, "bad \udcff byte, nul \0 too", error=math.nan)
    store.record(study, TrialRecord(Config({}), strange))
    found = store.trials(study)[0].evaluation
    assert found.error is not None and math.isnan(found.error)
    assert found.reason == "bad \\udcff byte, nul \\x00 too"


@pytest.mark.parametrize("name", ["median", "isolated", "predicted"])
def test_a_time_that_is_no_number_is_a_bug(store: Store, study: int, name: str) -> None:
    latency = copy.copy(TRIAL.evaluation.latency)
    bad = dataclasses.replace(TRIAL, evaluation=Evaluation(Outcome.MEASURED, latency=latency))
    object.__setattr__(bad if name == "predicted" else latency, name, math.nan)  # past any check of its own
    with pytest.raises(ValueError, match="number"):
        store.record(study, bad)
    assert store.trials(study) == []


def finish(store: Store, study: StudyRecord, winner: Winner, **changes: str) -> Winner:
    named = dataclasses.replace(winner, config=Config({"mode": "push", **changes}))
    store.finish(study.id, named)
    return named


def test_finishing_makes_the_entry(store: Store, study: int) -> None:
    for _ in range(3):
        store.record(study, TRIAL)
    assert store.entries() == [] and store.entry(KEY, PROVENANCE) is None
    store.finish(study, WINNER)
    entry = store.entry(KEY, PROVENANCE)
    assert entry is not None and store.entries() == [entry]
    found = (entry.key, entry.provenance, entry.winner, entry.study_id, entry.trials)
    assert found == (KEY, PROVENANCE, WINNER, study, 3)
    assert just_now(entry.finished_at)
    assert store.entry(KEY, dataclasses.replace(PROVENANCE, torch="2.12.0")) is None
    assert store.entry(dataclasses.replace(KEY, world_size=4), PROVENANCE) is None


def test_entries_come_newest_first_by_workload_and_device(store: Store) -> None:
    keys = [KEY, dataclasses.replace(KEY, workload="flash_decode"), dataclasses.replace(KEY, device="MI300X")]
    for each in keys:
        store.finish(begin(store, each).id, WINNER)
    begin(store, dataclasses.replace(KEY, arch="sm_100"))
    assert [entry.key for entry in store.entries()] == keys[::-1]
    assert [entry.key for entry in store.entries("all_gather_gemm")] == [keys[2], keys[0]]
    assert [entry.key for entry in store.entries(device="MI300X")] == [keys[2]]
    assert store.entries("flash_decode", "MI300X") == []


def test_entries_take_one_query(store: Store) -> None:
    for world_size in (2, 4, 8):
        store.finish(begin(store, dataclasses.replace(KEY, world_size=world_size)).id, WINNER)
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(store._database.engine, "before_cursor_execute", note)
    assert len(store.entries()) == 3
    assert [each for each in statements if not each.startswith(("BEGIN", "SET"))] == [statements[-1]]


def test_nearest_is_the_entry_with_the_fewest_differences(store: Store) -> None:
    assert store.nearest(KEY) is None
    far = dataclasses.replace(KEY, device="MI300X", arch="gfx942", interconnect="xgmi")
    near = dataclasses.replace(KEY, problem=KEY.problem.replace("4096", "8192"))
    another = dataclasses.replace(KEY, workload="flash_decode")
    for each in (near, far, another):
        store.finish(begin(store, each).id, WINNER)
    found = store.nearest(KEY)
    assert KEY.differences(found.key) == {"m": ("4096", "8192")}
    stale = store.nearest(near)
    assert stale is not None and stale.key == near


def test_a_clock_that_is_set_back_serves_no_older_winner(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = dataclasses.replace(PROVENANCE, torch="1.0")
    first = begin(store)
    finish(store, first, WINNER, by="first")
    store.forget(first.id)
    monkeypatch.setattr(rows, "now", lambda: "2001-01-01T00:00:00+00:00")
    newer = finish(store, begin(store), WINNER, by="second")
    assert [entry.winner for entry in store.entries()] == [newer]
    newest = finish(store, begin(store, KEY, stale), WINNER, by="third")
    assert [entry.winner for entry in store.entries()] == [newest, newer], "in the order in which they finished"


def test_a_superseded_study_that_finishes_later_is_not_served(store: Store) -> None:
    slow = begin(store)
    store.forget(slow.id)
    quick = begin(store)
    better = finish(store, quick, WINNER, by="the one in its place")
    finish(store, slow, WINNER, by="the superseded one")
    assert [entry.winner for entry in store.entries()] == [better]
    found = store.entry(KEY, PROVENANCE)
    assert found is not None and found.winner == better
    store.forget(quick.id)
    begin(store)
    assert [entry.winner for entry in store.entries()] == [better], "until the next one finishes"


LONG_AGO = datetime(2025, 3, 4, 5, 6, 7, 890, tzinfo=UTC)


@pytest.fixture
def entry() -> Entry:
    """An entry as another fleet's file would hold it."""
    return Entry(KEY, PROVENANCE, WINNER, study_id=77, finished_at=LONG_AGO, trials=250, seed=3, space_size=5832)


def test_an_adopted_entry_is_served_with_every_field(store: Store, entry: Entry) -> None:
    there = LONG_AGO.astimezone(timezone(timedelta(hours=9)))
    [study] = store.adopt([(dataclasses.replace(entry, finished_at=there), False)])
    [found] = store.entries()
    assert found.imported_at is not None and datetime.now(UTC) - found.imported_at < timedelta(minutes=1)
    assert found == dataclasses.replace(entry, study_id=study.id, imported_at=found.imported_at)
    assert store.entry(entry.key, entry.provenance) == found
    assert (study.state, study.winner, study.seed) == ("finished", entry.winner, 3)
    assert store.study(entry.key, entry.provenance, seed=0, space_size=1) == study, "tuning finds it"


def test_adopting_many_keeps_their_order_after_what_was_there(store: Store, entry: Entry) -> None:
    several = [dataclasses.replace(entry, key=dataclasses.replace(entry.key, device=f"gpu {n}")) for n in range(3)]
    [adopted] = store.adopt([(entry, False)])
    for _ in range(2):
        store.finish(adopted.id, entry.winner)
    store.adopt([(each, False) for each in several])
    assert [each.key.device for each in store.entries()] == ["gpu 2", "gpu 1", "gpu 0", entry.key.device]


@pytest.mark.parametrize("finished", [True, False])
def test_what_is_there_is_replaced_only_when_asked_to_and_kept(store: Store, entry: Entry, finished: bool) -> None:
    ours = store.study(entry.key, entry.provenance, seed=1, space_size=5832)
    store.record(ours.id, TRIAL)
    if finished:
        store.finish(ours.id, dataclasses.replace(entry.winner, config=Config({"mode": "pull"})))
    with pytest.raises(StoreError, match=f"study {ours.id} "):
        store.adopt([(entry, False)])
    assert len(store.studies()) == 1
    [adopted] = store.adopt([(entry, True)])
    assert store.entries()[0].study_id == adopted.id
    assert [study.state for study in store.studies()] == ["superseded", "finished"]
    assert store.trials(ours.id) == [TRIAL]


def test_an_imported_study_that_is_tuned_further_here_is_a_result_of_here(store: Store, entry: Entry) -> None:
    [adopted] = store.adopt([(entry, False)])
    store.record(adopted.id, TRIAL)
    assert store.entries()[0].trials == entry.trials + 1
    store.finish(adopted.id, entry.winner)
    [found] = store.entries()
    assert (found.study_id, found.imported_at, found.trials) == (adopted.id, None, entry.trials + 1)
    assert found.finished_at > entry.finished_at


OURS = Latency(100.0, 99.0, 101.0, 1.0, 9, host=120.0, isolated=300.0)
THEIRS = {"slow": Latency(400.0, 399.0, 401.0, 1.0, 9), "fast": Latency(150.0, 149.0, 151.0, 1.0, 9, host=240.0)}


def rows_of(store_url: URL, what: str) -> list[Any]:
    engine = create_engine(store_url)
    try:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql(f"SELECT {what} FROM tuning_winners ORDER BY study").fetchall())
    finally:
        engine.dispose()


@pytest.mark.parametrize("regime", Regime)
def test_a_winner_is_a_row_with_its_speedup_in_its_regime(store_url: URL, store: Store, regime: Regime) -> None:
    of = dataclasses.replace(KEY, problem='{"M":512,"n":"x","x.dtype":"torch.float16"}', regime=regime.value)
    for _ in range(2):
        study = store.study(of, PROVENANCE, seed=0, space_size=1)
        store.finish(study.id, Winner(Config({"mode": "push", "block_m": 64}), OURS, THEIRS))
        store.forget(study.id)
    store.study(of, PROVENANCE, seed=0, space_size=1)
    assert rows_of(store_url, "study") == [], "superseded and running ones are left out"
    study = store.study(dataclasses.replace(of, device="other"), PROVENANCE, seed=0, space_size=1)
    store.finish(study.id, Winner(Config({"mode": "push", "block_m": 64}), OURS, THEIRS))
    [(found, m, mode, ours, baseline, speedup)] = rows_of(
        store_url, "study, m, mode, microseconds, baseline_microseconds, speedup"
    )
    expected = min(latency.of(regime) for latency in THEIRS.values())
    assert (found, m, mode, ours, baseline) == (study.id, 512, "push", OURS.of(regime), expected)
    assert speedup == pytest.approx(expected / OURS.of(regime))


def test_without_baselines_there_is_no_speedup(store_url: URL, store: Store) -> None:
    study = store.study(KEY, PROVENANCE, seed=0, space_size=1)
    store.finish(study.id, Winner(Config({"mode": "push"}), OURS))
    assert rows_of(store_url, "speedup") == [(None,)]


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
