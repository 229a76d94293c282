"""Makes the helpers that lie beside this folder importable, and starts the compilers that its tests share."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def compiled() -> Iterator[Callable[..., Iterator[tuple[Any, Any]]]]:
    """Compiles a machine's jobs, (problem, config) each, in two processes for each target; yields configs and kernels.

    The processes stay until the last test: to start them takes as long as what one test lets them compile.
    """
    from compile_worker import compile_one

    pools: dict[str, ProcessPoolExecutor] = {}

    def run(machine: Any, jobs: list[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        if machine.arch not in pools:
            pools[machine.arch] = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
        pool = pools[machine.arch]
        futures = [(config, pool.submit(compile_one, machine, problem, config)) for problem, config in jobs]
        for config, future in futures:
            kernels = future.result()
            assert kernels, config
            yield config, kernels

    yield run
    for pool in pools.values():
        pool.shutdown()
