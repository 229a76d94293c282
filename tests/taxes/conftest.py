"""Makes the helpers that lie beside this folder importable, and ends the ranks that tests share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="package", autouse=True)
def _shared_ranks() -> Iterator[None]:
    from every_mode import RANKS

    yield
    RANKS.close()
