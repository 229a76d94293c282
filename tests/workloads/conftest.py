"""Makes the helpers that lie beside this folder importable, and the command over fakes."""

import sys
from pathlib import Path

import pytest

from autotune.cli import session
from autotune.workloads import registry

sys.path.insert(0, str(Path(__file__).parents[1]))
from fakes import LAPTOP, Bench


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """The command on a machine without GPUs, with a fake gang."""
    bench = Bench(LAPTOP)
    monkeypatch.setattr(session, "machine", lambda: LAPTOP)
    monkeypatch.setattr(session, "make_gang", bench.make_gang)
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "cache.db"))
    registry._from_files.cache_clear()
    return bench
