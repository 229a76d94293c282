"""Finding workloads: by entry point (ours and other distributions'), or in a user's own file."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from autotune.environment import setting
from autotune.errors import InputError, UnknownWorkload
from autotune.workloads.workload import Workload

ENTRY_POINTS = "autotune.workloads"
BUILT_IN = {
    "all_gather_gemm": "autotune.workloads.all_gather_gemm:WORKLOAD",
    "gemm_reduce_scatter": "autotune.workloads.gemm_reduce_scatter:WORKLOAD",
    "flash_decode": "autotune.workloads.flash_decode:WORKLOAD",
    "gemm_all_reduce": "autotune.workloads.gemm_all_reduce:WORKLOAD",
}
"""Found even where the package runs from a source tree that was never installed."""


@functools.cache
def _references() -> dict[str, importlib.metadata.EntryPoint]:
    built_in = [importlib.metadata.EntryPoint(name, value, ENTRY_POINTS) for name, value in BUILT_IN.items()]
    found = [*importlib.metadata.entry_points(group=ENTRY_POINTS), *built_in]
    return {point.name: point for point in found}


@functools.cache
def _from_files() -> dict[str, Workload]:
    paths = setting("AUTOTUNE_WORKLOADS")
    loaded = [each for path in paths.split(":") for each in load_file(path)] if paths else []
    return {each.name: each for each in loaded}


def names() -> list[str]:
    """Every workload that can be named."""
    return sorted({*_references(), *_from_files()})


def workload(name: str) -> Workload:
    """The workload of that name (dashes count as underscores); raises UnknownWorkload with the names there are."""
    wanted = name.replace("-", "_")
    if wanted in _from_files():
        return _from_files()[wanted]
    if wanted not in _references():
        raise UnknownWorkload(f"no workload named {name!r}; there are: {', '.join(names())}")
    found = _references()[wanted].load()
    if not isinstance(found, Workload):
        raise InputError(f"entry point {wanted} is a {type(found).__name__}; an instance of Workload is needed")
    return found


def load_file(path: str) -> list[Workload]:
    """The workloads that a user's Python file defines at its top level, as instances; at least one."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise InputError(f"workload file {path}: no such file")
    module_name = f"autotune_user_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise InputError(f"workload file {path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except (ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError) as error:
            del sys.modules[module_name]
            raise InputError(f"workload file {path}: {type(error).__name__}: {error}") from error
    found = [value for value in vars(sys.modules[module_name]).values() if isinstance(value, Workload)]
    if not found:
        raise InputError(f"workload file {path} defines no instance of Workload at its top level")
    return found
