"""Tuned configs between machines: export to a file, reviewed import, measurements in the T4 format."""

from autotune.sharing.exported import FORMAT, VERSION, read, schema, write
from autotune.sharing.reviewed import Here, Review, State, review, take
from autotune.sharing.t4 import to_t4

__all__ = [
    "FORMAT",
    "VERSION",
    "Here",
    "Review",
    "State",
    "read",
    "review",
    "schema",
    "take",
    "to_t4",
    "write",
]
