"""Makes the helpers that lie beside this folder importable, and the command over fakes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from fakes import LAPTOP, Bench, bench_of


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return bench_of(LAPTOP, monkeypatch, tmp_path)
