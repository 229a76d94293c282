"""Tuned configs between machines: the exported file, its review on import, vLLM's configs by size."""

from autotune.sharing.by_size import to_sizes as to_sizes
from autotune.sharing.exported import read as read
from autotune.sharing.exported import schema as schema
from autotune.sharing.exported import write as write
from autotune.sharing.reviewed import Here as Here
from autotune.sharing.reviewed import Review as Review
from autotune.sharing.reviewed import State as State
from autotune.sharing.reviewed import review as review
from autotune.sharing.reviewed import take as take
