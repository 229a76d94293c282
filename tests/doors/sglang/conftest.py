"""The plugin from this checkout, found by its entry point as if it were installed."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLUGIN = ROOT / "plugins" / "sglang"


@pytest.fixture
def environment(checkout: Callable[..., Path], tmp_path: Path) -> dict[str, str]:
    """For SGLang's processes: the entry point, the interpreter, a database of their own."""
    folder = checkout(tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"])
    settings = {
        "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "AUTOTUNE_DB": f"sqlite:///{tmp_path / 'tuned.db'}",
    }  # fmt: skip
    path = os.pathsep.join([*map(str, (folder, HERE, PLUGIN, ROOT, ROOT / "tests")), *sys.path])
    return {**os.environ, **settings, "PYTHONPATH": path}
