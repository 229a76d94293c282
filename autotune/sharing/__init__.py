"""Tuned configs between machines: the exported file, its review on import, vLLM's configs by size."""

from autotune.sharing.by_size import ConfigsBySize, configs_by_size, to_sizes
from autotune.sharing.exported import FORMAT, VERSION, read, schema, write
from autotune.sharing.reviewed import Here, Review, State, review, take

__all__ = [
    "FORMAT",
    "VERSION",
    "ConfigsBySize",
    "Here",
    "Review",
    "State",
    "configs_by_size",
    "read",
    "review",
    "schema",
    "take",
    "to_sizes",
    "write",
]
