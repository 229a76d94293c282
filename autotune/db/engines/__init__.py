"""Connects to a database by URL or path: SQLite files and PostgreSQL servers."""

from autotune.db.engines.database import Database
from autotune.db.engines.engine import database_url, has_secret, open_database, place_of, without_secret
from autotune.db.engines.failures import intact, translated
from autotune.db.engines.inspection import Condition, condition
from autotune.db.engines.schema import REVISION

__all__ = [
    "REVISION",
    "Condition",
    "Database",
    "condition",
    "database_url",
    "has_secret",
    "intact",
    "open_database",
    "place_of",
    "translated",
    "without_secret",
]
