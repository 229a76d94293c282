"""Run time: the cached look-up, and the operators that use it."""
