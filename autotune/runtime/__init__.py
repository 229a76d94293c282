"""Run time: the cached look-up, and the operators that use it."""

WARM_CALL = "autotune.runtime.host_overhead:warm_call"
"""The name by which the ranks of a tuning run find ``warm_call``: they are below, and import nothing from here."""
