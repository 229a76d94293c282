"""Kernels made in these tests are interpreted."""

import pytest


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """``@triton.jit`` makes interpreted functions here."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
