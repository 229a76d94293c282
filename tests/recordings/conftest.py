"""A recording that tests only read."""

from __future__ import annotations

import pytest
from reduced_space import recorded

from autotune.recordings.recording import Recording


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("recorded"))
