"""Tuned configs between machines: export to a file, reviewed import, measurements in the T4 format."""

from autotune.fleet.file import FORMAT, VERSION, read, schema, write
from autotune.fleet.review import Here, Review, State, review, take
from autotune.fleet.t4 import to_t4

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
