"""Makes the helpers that lie beside this folder importable; kernels made in these tests are interpreted."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``@triton.jit`` makes interpreted functions here, and no database has been read before."""
    from autotune.runtime.entries import forget_entries

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    forget_entries()
    yield
    forget_entries()
