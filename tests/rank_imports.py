"""Ranks of tests find this imported: what the tuner's ranks do, the package, which no test changes meanwhile, and
torch's compiler, whose imports take two CPU seconds.
"""

import importlib

import torch._dynamo.backends.debugging
import torch._inductor.compile_fx  # noqa: F401

import autotune.db
import autotune.ranks.gang
import autotune.ranks.imports
import autotune.runtime.context
import autotune.runtime.operators  # noqa: F401
from autotune.workloads.registry import BUILT_IN

for reference in BUILT_IN.values():
    importlib.import_module(reference.partition(":")[0])
