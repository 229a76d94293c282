"""What writers find imported: the store, and what it imports when a database is opened."""

import writer  # noqa: F401

import autotune.db.engines  # noqa: F401
