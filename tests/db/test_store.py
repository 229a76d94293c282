"""Studies through the store's door, and its speed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from python_calls import python_calls
from sqlalchemy import URL
from studies import begin, just_now

from autotune.db import CacheKey, Provenance, Store, TrialRecord, Winner
from autotune.errors import StoreError


def as_text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def test_a_new_study_holds_what_it_was_given_and_is_found_by_it(
    store: Store, key: CacheKey, provenance: Provenance
) -> None:
    study = begin(store, key, provenance)
    assert (study.key, study.provenance, study.seed, study.space_size) == (key, provenance, 11, 5832)
    assert (study.state, study.winner) == ("running", None)
    assert just_now(study.created_at)
    assert store.studies() == [study]
    assert store.study(key, provenance, seed=99, space_size=1) == study


@pytest.mark.parametrize(
    ("of", "field"),
    [(of, each.name) for of in (CacheKey, Provenance) for each in dataclasses.fields(of) if each.name != "problem"],
)
def test_every_field_of_the_key_and_of_the_provenance_makes_another_study(
    store: Store, study: int, key: CacheKey, provenance: Provenance, of: type, field: str
) -> None:
    changed: dict[str, Any] = {field: {"world_size": 4, "regime": "graph"}.get(field, "other")}
    others = [dataclasses.replace(each, **changed) if isinstance(each, of) else each for each in (key, provenance)]
    assert begin(store, *others).id != study


def test_a_seed_beyond_64_bits_is_refused(store: Store, key: CacheKey, provenance: Provenance) -> None:
    with pytest.raises(StoreError, match="seed"):
        store.study(key, provenance, seed=2**63, space_size=1)
    assert store.study(key, provenance, seed=-(2**63), space_size=2**63 - 1).space_size == 2**63 - 1


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
    assert store.studies("running") == store.studies(number=new.id) == [new] and store.names() == {key.workload}


def test_taxes_are_of_one_study_and_the_last_ones_count(store: Store, key: CacheKey, provenance: Provenance) -> None:
    one, other = begin(store, key, provenance), begin(store, dataclasses.replace(key, world_size=4), provenance)
    store.add_taxes(one.id, '{"first": 1}')
    assert store.taxes(one.id) == '{"first": 1}' and store.taxes(other.id) is None
    store.add_taxes(one.id, '{"second": 2}')
    store.add_taxes(other.id, '{"other": 3}')
    assert store.taxes(one.id) == '{"second": 2}' and store.taxes(other.id) == '{"other": 3}'


@pytest.mark.parametrize("method", ["record", "trials", "finish", "forget"])
def test_an_unknown_study_is_refused(store: Store, trial: TrialRecord, winner: Winner, method: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"record": (trial,), "finish": (winner,)}
    with pytest.raises(StoreError, match="41"):
        getattr(store, method)(41, *arguments.get(method, ()))


def test_recording_and_opening_are_quick(
    path: Path, sqlite_store: Store, key: CacheKey, provenance: Provenance, trial: TrialRecord
) -> None:
    """By the Python functions that they enter, which hang on no machine's speed: some 1100 and 1000."""
    study = begin(sqlite_store, key, provenance)
    sqlite_store.record(study.id, trial)

    def open_again() -> None:
        with Store.open(path):
            pass

    recording, opening = python_calls(lambda: sqlite_store.record(study.id, trial)), python_calls(open_again)
    assert recording < 2500 and opening < 2500, (recording, opening)
