"""The search: which config next, and the surrogate that it asks."""

from autotune.tuning.search.search import Candidate, Search

__all__ = ["Candidate", "Search"]
