"""From a URL or a path to a connected database: SQLite files and PostgreSQL servers, with the manners of each."""

from autotune.db.engines.condition import Condition, condition
from autotune.db.engines.engine import database_url, open_engine, place_of
from autotune.db.engines.failures import intact, translated
from autotune.db.engines.writing import WRITING

__all__ = ["WRITING", "Condition", "condition", "database_url", "intact", "open_engine", "place_of", "translated"]
