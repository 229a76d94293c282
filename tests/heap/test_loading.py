"""Iris can be imported where only pip's torch is, and where there is no GPU stack at all."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripts import run_script

from autotune.heap import loading

WITHOUT_RUNTIMES = """
import ctypes, sys
original = ctypes.cdll.LoadLibrary
def refuse(name):
    if "cudart" in name or "amdhip" in name:
        raise OSError(f"{name}: cannot open shared object file")
    return original(name)
ctypes.cdll.LoadLibrary = refuse
from autotune.heap import loading
loading._find_runtime = lambda name: None
for name in [name for name in sys.modules if name.partition(".")[0] == "iris"]:
    del sys.modules[name]  # the process was forked from one that had it
loading.import_iris.cache_clear()
iris = loading.import_iris()
assert ctypes.cdll.LoadLibrary is refuse, "the loader is as it was"
from iris.host.platform import hip
try:
    hip.count_devices()
except OSError as error:
    print(iris.load.__name__, error)
"""


def test_iris_loads_without_any_runtime_and_says_so_when_one_is_needed() -> None:
    done = run_script("-c", WITHOUT_RUNTIMES)
    assert done.stdout.startswith("load ") and "neither" in done.stdout, done.stderr


def test_torchs_own_runtime_comes_before_that_of_nvidias_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def specification(name: str) -> Any:
        return SimpleNamespace(submodule_search_locations=[str(tmp_path / name)])

    monkeypatch.setattr(loading.importlib.util, "find_spec", specification)
    for path in ("nvidia/cuda_runtime/lib/libcudart.so.13", "torch/lib/libcudart.so.12"):
        library = tmp_path / path
        library.parent.mkdir(parents=True)
        library.touch()
        assert loading._find_runtime("libcudart.so") == library
    assert loading._find_runtime("libamdhip64.so") is None


def test_the_loader_is_put_back_also_after_a_failure() -> None:
    before = ctypes.cdll.LoadLibrary
    with pytest.raises(ImportError), loading._bare_names_resolved():
        raise ImportError
    assert ctypes.cdll.LoadLibrary == before
