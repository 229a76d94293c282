"""Run time: the cached lookup, and operators that use it."""
