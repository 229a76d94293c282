"""The way to tune a study's problem again: a command line, or a call in the program of a decorated kernel."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from autotune.db import CacheKey, Entry
from autotune.results.figures import dashed, options_text, plain, regime_options
from autotune.results.order import fields_in_order
from autotune.text import visible
from autotune.workloads import Workload, is_reference, names, reference_of


def repeat_text(entry: Entry, workload: Workload | None) -> str:
    command = command_of(entry.key, entry.origin, workload)
    problem = fields_in_order(entry.key, workload)
    return repeat_of(entry.key, problem, entry.origin, entry.seed, command)


def command_of(key: CacheKey, origin: str, workload: Workload | None) -> str:
    """The command that tunes a workload; empty for a kernel, which its own program tunes."""
    if key.is_kernel:
        return ""
    known = key.workload in names()
    reference = reference_of(workload) if workload is not None else key.workload if known else origin or key.workload
    if not is_reference(reference):
        return f"tune {dashed(reference)}"
    return f"tune run {shlex.quote(visible(os.path.relpath(reference)))}"


def repeat_of(key: CacheKey, problem: Mapping[str, Any], origin: str, seed: int, command: str) -> str:
    """``command`` with the problem and the seed; without a command, the call that tunes a decorated kernel."""
    if command:
        return f"{command} {options_text(problem)} --seed {seed}{regime_options(key.regime)} --force"
    fields = " ".join(f"{plain(name)}={plain(value)}" for name, value in problem.items())
    where = f" in {visible(origin.rpartition(':')[0])}" if origin else " in its program"
    return f"{visible(key.workload)}.tune(…, grid=…){where}, with {fields}"
