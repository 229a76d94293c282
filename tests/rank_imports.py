"""Ranks of tests find this imported: what the tuner's ranks do, the package, which no test changes meanwhile, and what
takes long besides: torch's compiler, two CPU seconds, without inductor, which no fast test runs, and what tuning in a
program imports, one. Kernels are there as the interpreter runs them: to rewrite a workload's takes each rank a third of
a CPU second, and all of them take two. Their garbage is collected as seldom as in the tests themselves.
"""

import gc
import importlib

import pytest  # noqa: F401
import torch._dynamo.backends.debugging
import torch._dynamo.guards
import torch._inductor.decomposition
from triton.runtime.interpreter import InterpretedFunction

import autotune.db
import autotune.model_runs.ranks
import autotune.ranks.gang
import autotune.ranks.imports
import autotune.ranks.measure
import autotune.ranks.rank
import autotune.runtime.context
import autotune.runtime.in_program
import autotune.runtime.operators
import autotune.tuning.loop  # noqa: F401
from autotune.workloads.registry import BUILT_IN

for reference in BUILT_IN.values():
    importlib.import_module(reference.partition(":")[0])

torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
"""The compiler empties the processor's cache to time each graph's guards, for a log: a fifth of its time."""

gc.set_threshold(20_000, 20, 20)

REWRITTEN = ("autotune.", "iris.mem.triton.", "triton.language.")
for kernel in [each for each in gc.get_objects() if type(each) is InterpretedFunction]:
    if kernel.fn.__module__.startswith(REWRITTEN):
        kernel.rewrite()
