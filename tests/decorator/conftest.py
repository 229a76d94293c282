"""Kernels made in these tests are interpreted."""

from collections.abc import Iterator

import pytest

from autotune.runtime.entries import forget_entries


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``@triton.jit`` makes interpreted functions here, and no database has been read before."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    forget_entries()
    yield
    forget_entries()
