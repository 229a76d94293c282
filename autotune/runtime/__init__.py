"""Run time: the cached lookup, and operators that use it."""

from autotune.runtime.lookup import Found, forget_lookups, lookup

__all__ = ["Found", "forget_lookups", "lookup"]
