"""The GPU runtime that Iris finds while it is imported."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.heap import loading

Loader = Callable[[str], Any]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests to the real loader, which opens full paths alone, as on a machine with nothing installed."""
    asked: list[str] = []

    def load(name: str) -> str:
        asked.append(name)
        if not name.startswith("/"):
            raise OSError(f"{name}: cannot open shared object file")
        return f"opened {name}"

    monkeypatch.setattr(ctypes.cdll, "LoadLibrary", load)
    return asked


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only place where packages are looked for."""
    monkeypatch.setattr(loading.importlib.util, "find_spec", _finder(tmp_path))
    return tmp_path


def _finder(place: Path) -> Callable[[str], Any]:
    class Spec:
        def __init__(self, folder: Path) -> None:
            self.submodule_search_locations = [str(folder)]

    return lambda name: Spec(place / name) if (place / name).is_dir() else None


def put(place: Path, path: str) -> Path:
    (place / path).parent.mkdir(parents=True, exist_ok=True)
    (place / path).touch()
    return place / path


def test_torchs_own_copy_comes_before_the_wheels(packages: Path) -> None:
    put(packages, "nvidia/cuda_runtime/lib/libcudart.so.13")
    own = put(packages, "torch/lib/libcudart.so.12")
    assert loading._find_runtime("libcudart.so") == own
    assert loading._find_runtime("libamdhip64.so") is None


def test_without_a_runtime_iris_gets_one_that_says_so(opened: list[str], packages: Path) -> None:
    with loading._bare_names_resolved():
        stand_in = ctypes.cdll.LoadLibrary("libcudart.so")
        with pytest.raises(OSError, match=r"libamdhip64\.so"):
            ctypes.cdll.LoadLibrary("libamdhip64.so")
    with pytest.raises(OSError, match="cudaGetDeviceCount: this machine has neither"):
        stand_in.cudaGetDeviceCount()


def test_the_loader_is_put_back_also_after_a_failure(opened: list[str], packages: Path) -> None:
    before = ctypes.cdll.LoadLibrary
    with pytest.raises(ImportError), loading._bare_names_resolved():
        raise ImportError
    assert ctypes.cdll.LoadLibrary is before
