"""For every test: its own user folders, and GPU tests only on machines with GPUs."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

RANKS_PER_GPU = int(os.environ.get("RANKS_PER_GPU", "1"))
"""Ranks that take turns on a GPU show that kernels are right at a world size that the machine has no GPUs for. NCCL
takes one rank a GPU, so the library's collectives are left out then."""


@functools.cache
def gpus() -> int:
    """The number of ranks that this machine's GPUs (CUDA or ROCm) can run: ``RANKS_PER_GPU`` of them (1 if not set)
    share each.
    """
    import torch

    return torch.cuda.device_count() * RANKS_PER_GPU if torch.cuda.is_available() else 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more GPUs than there are, ``@pytest.mark.gpu`` or ``@pytest.mark.gpu(4)``, and what is slow."""
    if item.get_closest_marker("slow") and "slow" not in item.config.option.markexpr:
        pytest.skip("takes minutes: runs with -m slow")
    for mark in item.iter_markers("gpu"):
        needed = mark.args[0] if mark.args else 1
        if gpus() < needed:
            pytest.skip(f"needs {needed} GPU{'s' if needed > 1 else ''}, this machine has {gpus() or 'none'}")


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the developer's settings or touches their database."""
    for name in [name for name in os.environ if name.startswith("AUTOTUNE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user-data"))
    monkeypatch.setenv("NO_COLOR", "1")
