"""Imports Iris on machines without a CUDA or ROCm installation.

On import Iris opens ``libcudart.so`` (or ROCm's ``libamdhip64.so``) by that bare name. pip's torch ships the CUDA
runtime as ``libcudart.so.<major>`` in a package folder, where the loader does not look; a laptop has none.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import types
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUNTIMES = ("libcudart.so", "libamdhip64.so")


@functools.cache
def import_iris() -> types.ModuleType:
    """Import Iris, wherever the GPU runtime is, also without one.

    Without a GPU runtime the host side of Iris is unusable, but its device functions still run under Triton's
    interpreter and compile offline.
    """
    import torch  # noqa: F401  maps torch's own runtime first: Iris then takes that copy on ROCm

    with _bare_names_resolved():
        import iris
    return iris  # type: ignore[no-any-return]


@functools.cache
def iris_if_installed() -> types.ModuleType | None:
    """Iris, or None where it cannot be imported: then kernels reach the peers by ``heap/remote.py``."""
    try:
        return import_iris()
    except (ImportError, OSError):
        return None


class _NoRuntime:
    """Stands in for a missing GPU runtime: using it raises an error that says so."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(f"{name}: this machine has neither the CUDA nor the HIP runtime")


@contextlib.contextmanager
def _bare_names_resolved() -> Iterator[None]:
    """While it lasts, the loader finds the runtimes by their bare names."""
    loader = ctypes.cdll
    original = loader.LoadLibrary

    def load(name: str) -> Any:
        try:
            return original(name)
        except OSError:
            if name not in RUNTIMES:
                raise
            found = _find_runtime(name)
            if found is not None:
                return original(str(found))
            if name == "libcudart.so":
                return _NoRuntime()
            raise

    with unittest.mock.patch.object(loader, "LoadLibrary", load):
        yield


def _find_runtime(name: str) -> Path | None:
    """``name`` under torch's own folder or in one of NVIDIA's wheels beside it."""
    roots: list[Path] = []
    for package, below in (("torch", "lib"), ("nvidia", "")):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            roots.append(Path(place) / below)
    for root in roots:
        found = sorted(root.glob(f"**/{name}*"))
        if found:
            return found[0]
    return None
