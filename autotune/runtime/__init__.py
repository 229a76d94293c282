"""Run time: the cached look-up, and the operators that use it."""

DOOR = "autotune.runtime.door:door"
"""The name by which the ranks of a tuning run find ``door``: they are below, and import nothing from here."""
