"""Finds workloads: by entry point (ours and other distributions'), or in a user's own file."""

from __future__ import annotations

import functools
import importlib.metadata

from autotune.errors import InputError, UnknownWorkload
from autotune.forks import FORKS_WAIT
from autotune.settings import WORKLOADS
from autotune.text import did_you_mean
from autotune.workloads.interface import Workload
from autotune.workloads.user_files import BUILT_IN, from_reference, instances, is_reference

ENTRY_POINTS = "autotune.workloads"


@functools.cache
def _references() -> dict[str, importlib.metadata.EntryPoint]:
    built_in = [importlib.metadata.EntryPoint(name, value, ENTRY_POINTS) for name, value in BUILT_IN.items()]
    found = [*importlib.metadata.entry_points(group=ENTRY_POINTS), *built_in]
    return {point.name: point for point in found}


def _from_files() -> dict[str, Workload]:
    return _in_files(tuple(WORKLOADS.value() or ()))


@functools.cache
def _in_files(paths: tuple[str, ...]) -> dict[str, Workload]:
    loaded = [each for path in paths for each in instances(path)]
    return {each.name: each for each in loaded}


def names() -> list[str]:
    return sorted({*_references(), *_from_files()})


def workload(name: str) -> Workload:
    """The workload of a name (dashes count as underscores), or FILE:CLASS in a user's own file.

    Raises UnknownWorkload that lists all names, InputError for an invalid file.
    """
    with FORKS_WAIT:
        return from_reference(name) if is_reference(name) else _named(name)


def _named(name: str) -> Workload:
    wanted = name.replace("-", "_")
    if wanted in _from_files():
        return _from_files()[wanted]
    if wanted not in _references():
        known = f"known: {', '.join(names())}, or FILE:CLASS{did_you_mean(wanted, names())}"
        raise UnknownWorkload(f"no workload named {name!r}; {known}")
    found = _references()[wanted].load()
    if not isinstance(found, Workload):
        raise InputError(f"entry point {wanted} is a {type(found).__name__}; it must be an instance of Workload")
    return found


def installed_workload(name: str) -> Workload:
    """The workload of a name from a database or a file of configs: such a name never loads a file.

    Raises UnknownWorkload.
    """
    if is_reference(name):
        raise UnknownWorkload(f"no workload named {name!r}, and stored names load no files")
    return workload(name)
