"""Ranks of tests find this imported: what the tuner's ranks do, and the package, which no test changes meanwhile."""

import importlib

import autotune.db
import autotune.ranks.gang
import autotune.ranks.imports
import autotune.runtime.context
import autotune.runtime.operators  # noqa: F401
from autotune.workloads.registry import BUILT_IN

for reference in BUILT_IN.values():
    importlib.import_module(reference.partition(":")[0])
