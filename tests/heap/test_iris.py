"""Iris can be loaded where there is no GPU stack; of a closed heap nothing is left for the collector to find."""

from __future__ import annotations

import ctypes
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripts import run_script

from autotune.heap import gpu, loading
from autotune.heap.shared import SharedMemoryHeap
from autotune.kernels.all_gather_gemm.library import kept

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


class Held:
    """Stands for Iris's own heap: closed once or more, and once more by its destructor."""

    def __init__(self) -> None:
        self.mapped = True

    def close(self) -> None:
        self.mapped = False

    def __del__(self) -> None:
        self.close()


class Iris:
    """Stands for Iris's context, which is part of a cycle as the real one is."""

    def __init__(self, heap_size: int, allocator_type: str) -> None:
        self.heap = Held()
        self.ccl = SimpleNamespace(_iris=self)
        self._memory = torch.empty(heap_size, dtype=torch.uint8)

    def empty(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return self._memory[:size].view(dtype)

    def get_heap_bases(self) -> torch.Tensor:
        return torch.tensor([self._memory.data_ptr()])


def test_what_is_closed_is_gone_before_the_collector_comes(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def iris(**options: Any) -> Iris:
        made.append(weakref.ref(context := Iris(**options)))
        made.append(weakref.ref(context.heap))
        return context

    monkeypatch.setattr(gpu, "import_iris", lambda: SimpleNamespace(iris=iris, tensor_from_ptr=None))
    gc.disable()
    try:
        heap = gpu.IrisHeap(1 << 20)
        theirs = heap.context.heap
        heap.close()
        assert not theirs.mapped
        del theirs, heap
        assert [alive() for alive in made] == [None, None]
    finally:
        gc.enable()


def test_what_calls_keep_between_them_is_shared_and_goes_with_the_heap(alone: None) -> None:
    heap = SharedMemoryHeap(1 << 16)
    first = kept(heap, "gathered", (8, 16), torch.bfloat16)
    assert kept(heap, "gathered", (4, 4), torch.float32).data_ptr() == first.data_ptr()
    assert kept(heap, "scales", (8, 16), torch.bfloat16).data_ptr() != first.data_ptr()
    larger = weakref.ref(kept(heap, "gathered", (9, 16), torch.bfloat16).untyped_storage())
    assert heap.kept["gathered"][0].data_ptr() == first.data_ptr(), "a captured graph may have its address"
    heap.close()
    assert not heap.kept and larger() is None
