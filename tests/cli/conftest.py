"""Fixtures of the command line's tests: the command in this process, with a fake gang on a machine of one's choice."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, LAPTOP, Bench, bench_of


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return bench_of(EIGHT_GPUS, monkeypatch, tmp_path)


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """A machine without any."""
    return bench_of(LAPTOP, monkeypatch, tmp_path)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, laptop: Bench) -> Bench:
    """A machine whose user has a workload of their own."""
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(Path(__file__).parent / "toy_workload.py"))
    return laptop
