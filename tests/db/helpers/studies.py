"""Helpers of the store's tests: a new study, and moments that are just past."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sample import KEY, PROVENANCE
from sqlalchemy import URL

from autotune.db import CacheKey, Provenance, Store, StudyRecord


def begin(store: Store, key: CacheKey = KEY, provenance: Provenance = PROVENANCE) -> StudyRecord:
    return store.study(key, provenance, seed=11, space_size=5832)


def just_now(moment: datetime | None) -> bool:
    return moment is not None and timedelta(0) <= datetime.now(UTC) - moment < timedelta(minutes=1)


def as_text(url: URL) -> str:
    return url.render_as_string(hide_password=False)
