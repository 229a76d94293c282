"""Connects to a database by URL or path: SQLite files and PostgreSQL servers."""

from autotune.db.engines.database import Database as Database
from autotune.db.engines.engine import Condition as Condition
from autotune.db.engines.engine import condition as condition
from autotune.db.engines.engine import database_url as database_url
from autotune.db.engines.engine import has_secret as has_secret
from autotune.db.engines.engine import open_database as open_database
from autotune.db.engines.engine import place_of as place_of
from autotune.db.engines.engine import without_secret as without_secret
from autotune.db.engines.failures import intact as intact
from autotune.db.engines.failures import translated as translated
from autotune.db.engines.schema import REVISION as REVISION
