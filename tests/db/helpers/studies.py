"""A new study, a moment that is just past, a database that is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sample import KEY, PROVENANCE, TRIAL, WINNER
from sqlalchemy import URL

from autotune.db import CacheKey, Provenance, Store, StudyRecord
from autotune.errors import StoreError


def begin(store: Store, key: CacheKey = KEY, provenance: Provenance = PROVENANCE) -> StudyRecord:
    return store.study(key, provenance, seed=11, space_size=5832)


def fill(path: str | Path, trials: int) -> None:
    """A database with a finished study."""
    with Store.open(path) as store:
        study = begin(store)
        for _ in range(trials):
            store.record(study.id, TRIAL)
        store.finish(study.id, WINNER)


def just_now(moment: datetime | None) -> bool:
    return moment is not None and timedelta(0) <= datetime.now(UTC) - moment < timedelta(minutes=1)


def as_text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def refusal(place: str | Path, *, create: bool = True) -> str:
    """The one line with which opening is refused."""
    with pytest.raises(StoreError) as caught:
        Store.open(place, create=create)
    assert "\n" not in str(caught.value)
    return str(caught.value)
