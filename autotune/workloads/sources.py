"""The source files that a workload's results depend on, and their hash: results of other sources are stale."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import InputError

SHARED = (
    "autotune.dtypes",
    "autotune.heap",
    "autotune.kernels.launching",
    "autotune.kernels.primitives",
    "autotune.ranks.early_stop",
    "autotune.ranks.measure",
    "autotune.workloads.comparison",
    "autotune.workloads.input_sets",
    "autotune.workloads.launched",
)
"""Modules that run and time every workload: the heap, the launchers, the stopwatch."""


def hash_of(files: Iterable[Path]) -> str:
    """A hash of what the files hold now."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def files_of(names: Iterable[str]) -> list[Path]:
    """The files of modules and, for packages, of all modules below, in the same order on every machine.

    Imports nothing but the packages that the modules lie in. Raises InputError for a name that is not a module.
    """
    found: dict[str, Path] = {}
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise InputError(f"sources names {name!r}, which cannot be imported as a module")
        if spec.origin is not None:
            found[name] = Path(spec.origin)
        for place in spec.submodule_search_locations or ():
            for folder, _, files in os.walk(place):  # quicker than rglob: a first look-up waits for it
                below = name + folder.removeprefix(place)
                found |= {f"{below}/{file}": Path(folder, file) for file in files if file.endswith(".py")}
    return list(dict.fromkeys(found[name] for name in sorted(found)))
