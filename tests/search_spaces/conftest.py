"""Makes the helpers that lie beside this folder importable, and starts the compilers that its tests share."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def compilers() -> Iterator[Callable[[str], Executor]]:
    """Two for each target, until the last test: to start them takes as long as what one test lets them compile."""
    pools: dict[str, ProcessPoolExecutor] = {}

    def of(arch: str) -> Executor:
        if arch not in pools:
            pools[arch] = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
        return pools[arch]

    yield of
    for pool in pools.values():
        pool.shutdown()
