"""One order everywhere: a problem's fields as declared, a config's dimensions as in the space, its mode first."""

from __future__ import annotations

from typing import Any

from autotune.config import Config
from autotune.db import CacheKey
from autotune.errors import InputError
from autotune.problem import Problem
from autotune.workloads import Workload, installed_workload
from autotune.workloads.descriptors import installed_descriptor


def known_workload(key: CacheKey) -> Workload | None:
    """The key's workload; None if it is not installed or its file is broken, and for a decorated kernel."""
    try:
        return None if key.is_kernel else installed_workload(key.workload)
    except InputError:
        return None


def problem_type(key: CacheKey) -> type[Problem] | None:
    """Problem type of a key, without loading kernels; None as for ``known_workload``."""
    try:
        return None if key.is_kernel else installed_descriptor(key.workload).problem_type
    except InputError:
        return None


def fields_in_order(key: CacheKey, workload: Workload | None = None) -> dict[str, Any]:
    """The problem's fields in the order of ``Problem.in_order``; as stored where the workload is not known."""
    values = key.fields
    kind = workload.problem_type if workload is not None else problem_type(key)
    declared = [field.name for field in kind.in_order()] if kind is not None else []
    return {name: values[name] for name in [*declared, *values] if name in values}


def config_in_order(key: CacheKey, config: Config, workload: Workload | None = None) -> Config:
    """The config with its dimensions in the space's order, its mode first; as stored where no space is known."""
    found = workload or known_workload(key)
    if found is not None:
        return found.space.ordered(config)
    return Config({name: config[name] for name in ["mode", *config] if name in config})
