"""The database: every evaluation, and the tuned configs that look-ups find. Knows no kernel."""

from typing import TYPE_CHECKING

from autotune.db.lease import Held as Held
from autotune.db.lease import Lease as Lease
from autotune.db.records import CacheKey as CacheKey
from autotune.db.records import Entry as Entry
from autotune.db.records import Provenance as Provenance
from autotune.db.records import Roofline as Roofline
from autotune.db.records import Routed as Routed
from autotune.db.records import StudyRecord as StudyRecord
from autotune.db.records import TrialRecord as TrialRecord
from autotune.db.records import Unread as Unread
from autotune.db.records import Winner as Winner
from autotune.lazily import loading

if TYPE_CHECKING:
    from autotune.db.store import Store as Store

# It imports SQLAlchemy, and ranks, compilers and help pages need only the records.
__getattr__ = loading(__name__, {"Store": "autotune.db.store"})
