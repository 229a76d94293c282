"""The database: every evaluation, and the tuned configs that look-ups find. Knows no kernel."""

from typing import TYPE_CHECKING, Any

from autotune.db.lease import Held, Lease
from autotune.db.records import (
    CacheKey,
    Differences,
    Entry,
    Provenance,
    Roofline,
    State,
    StudyRecord,
    TrialRecord,
    Winner,
)

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
    "State",
    "Store",
    "StudyRecord",
    "TrialRecord",
    "Winner",
]


def __getattr__(name: str) -> Any:
    """Load the store on first use: it imports SQLAlchemy, and ranks and compilers need only the records."""
    if name != "Store":
        raise AttributeError(f"module 'autotune.db' has no attribute {name!r}; it has {', '.join(__all__)}")
    from autotune.db.store import Store

    return Store
