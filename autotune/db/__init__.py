"""The database: every evaluation ever made, and the tuned configs that lookups find. Knows no kernel."""

from autotune.db.engines import Condition, condition
from autotune.db.records import (
    CacheKey,
    Differences,
    Entry,
    Provenance,
    State,
    StudyRecord,
    TrialRecord,
    Winner,
)
from autotune.db.store import Store

__all__ = [
    "CacheKey",
    "Condition",
    "Differences",
    "Entry",
    "Provenance",
    "State",
    "Store",
    "StudyRecord",
    "TrialRecord",
    "Winner",
    "condition",
]
