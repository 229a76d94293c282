"""Iris can be imported where only pip's torch is, and where there is no GPU stack at all."""

from __future__ import annotations

from pathlib import Path

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
    assert done.stdout.startswith("load ") and "neither the CUDA nor the HIP runtime" in done.stdout, done.stderr


def test_the_runtime_of_nvidias_wheel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tmp_path / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.13"
    wanted.parent.mkdir(parents=True)
    wanted.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert loading._find_runtime("libcudart.so") == wanted
