"""Makes the helpers of this folder and those that lie beside it importable; a recording that tests only read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

if TYPE_CHECKING:
    from autotune.recordings.recording import Recording


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    from reduced_space import recorded

    return recorded(tmp_path_factory.mktemp("recorded"))
