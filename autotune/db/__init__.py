"""The database: every evaluation, and the tuned configs that look-ups find. Knows no kernel."""

from typing import TYPE_CHECKING

from autotune.db.lease import Held, Lease
from autotune.db.records import (
    CacheKey,
    Differences,
    Entry,
    Provenance,
    Roofline,
    Routed,
    State,
    StudyRecord,
    TrialRecord,
    Unread,
    Winner,
)
from autotune.lazily import loading

if TYPE_CHECKING:
    from autotune.db.store import Store

__all__ = [
    "CacheKey",
    "Differences",
    "Entry",
    "Held",
    "Lease",
    "Provenance",
    "Roofline",
    "Routed",
    "State",
    "Store",
    "StudyRecord",
    "TrialRecord",
    "Unread",
    "Winner",
]

# It imports SQLAlchemy, and ranks, compilers and help pages need only the records.
__getattr__ = loading(__name__, {"Store": "autotune.db.store"})
