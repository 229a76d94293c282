"""Entries that were tuned elsewhere."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sample import KEY, PROVENANCE, TRIAL, WINNER

from autotune.config import Config
from autotune.db import Entry, Store
from autotune.errors import StoreError

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
def test_what_is_there_is_replaced_only_when_asked_to_and_kept_even_then(
    store: Store, entry: Entry, finished: bool
) -> None:
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
