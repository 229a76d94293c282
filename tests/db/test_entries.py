"""Winners and entries through the store's door."""

from __future__ import annotations

import dataclasses

import pytest
from sample import KEY, PROVENANCE, TRIAL, WINNER
from sqlalchemy import event
from studies import begin, just_now

from autotune.config import Config
from autotune.db import Store, StudyRecord, Winner, rows


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
    assert found is not None
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
