"""Ranks on several hosts, by simulation: docs/decisions.md, "More hosts"."""
