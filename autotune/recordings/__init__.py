"""Recorded search spaces: every config of a reduced space measured, kept as a table, and replayed without a GPU."""
