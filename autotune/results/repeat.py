"""What to paste: a config, and the command line or the call that tunes its problem again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from autotune.config import Config
from autotune.db import CacheKey
from autotune.results.figures import config_text, dashed, options_text, plain, regime_options
from autotune.results.order import config_in_order, fields_in_order
from autotune.text import json_text, visible
from autotune.workloads import Workload, is_reference, names, reference_of

NOTHING = "none"
"""Marks a parameter that a config of a decorated kernel's list lacks."""


def copies(key: CacheKey, config: Config, origin: str = "", workload: Workload | None = None) -> dict[str, str]:
    """Blocks to copy, by where they are used. A decorated kernel has no command: its own program launches it."""
    config, problem = config_in_order(key, config, workload), fields_in_order(key, workload)
    found = {"Python": visible(_of_kernel(config) if key.is_kernel else f"config = autotune.Config({_dict(config)})")}
    command = command_of(key, origin, workload)
    if command:
        found["command"] = visible(f"{command} {options_text(problem)} --config {shlex.quote(config_text(config))}")
    return {**found, "JSON": json_text(dict(config), indent=None)}


def _of_kernel(config: Config) -> str:
    """A decorated kernel's config for a list of configs."""
    from autotune.search_spaces import COMPILER_OPTIONS  # loads NumPy, which a help page can do without

    values = {name: value for name, value in config.items() if value != NOTHING}
    options = {name: values.pop(name) for name in COMPILER_OPTIONS if name in values}
    if values.get("mode") == "kernel":  # of a kernel without modes
        del values["mode"]
    named = "".join(f", {name}={value!a}" for name, value in options.items())
    return f"config = triton.Config({_dict(values)}{named})"


def _dict(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name!a}: {value!a}" for name, value in values.items()) + "}"


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
