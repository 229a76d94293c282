"""Entries: made by a finished study or adopted from elsewhere, served, and seen as rows of the views."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sample import KEY, PROVENANCE, TRIAL, WINNER
from sqlalchemy import URL, create_engine, event
from studies import begin, just_now

from autotune.config import Config
from autotune.db import Entry, Store, StudyRecord, Winner, rows
from autotune.errors import StoreError
from autotune.outcome import Latency, Regime


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
