"""Forks while threads look up: a data loader's workers are children of a program at work."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, latency_of

import autotune
from autotune.db import CacheKey, Store, Winner
from autotune.runtime.lookup import forget_lookups
from autotune.workloads import provenance_of, workload

FOUND = workload("all_gather_gemm")
SECONDS = 300
"""In which a child has to answer; it takes some milliseconds on an idle machine."""


def problem(m: int) -> autotune.AllGatherGemm:
    return autotune.AllGatherGemm(m=m, n=28672, k=8192, world_size=8)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "cache.db"
    with Store.open(path) as store:
        for m in range(8, 88, 8):
            key = CacheKey.of(problem(m), EIGHT_GPUS)
            study = store.study(key, provenance_of(FOUND), seed=0, space_size=1)
            store.finish(study.id, Winner(FOUND.default_config(problem(m), EIGHT_GPUS), latency_of(100.0)))
    forget_lookups()
    yield str(path)
    forget_lookups()


def look_up(url: str, m: int) -> bool:
    return autotune.lookup("all_gather_gemm", problem(m), machine=EIGHT_GPUS, url=url).source == "exact"


@pytest.mark.parametrize("forks", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_every_child_looks_up(url: str, forks: int) -> None:
    over = threading.Event()

    def work(m: int) -> None:
        while not over.is_set():
            assert look_up(url, m)
            forget_lookups()

    threads = [threading.Thread(target=work, args=(m,)) for m in (8, 16)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(forks):
            assert wait(fork(url)) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert look_up(url, 24), "the parent goes on"


def test_a_fork_does_not_wait_for_a_lookup_that_hangs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runtime.gate.FORK_SECONDS", 0.2)
    asked, over = threading.Event(), threading.Event()

    def hang(*_: object) -> list[object]:
        asked.set()
        over.wait()
        return []

    with monkeypatch.context() as patched:
        patched.setattr("autotune.runtime.entries._query", hang)
        thread = threading.Thread(target=look_up, args=(url, 8))
        thread.start()
        asked.wait()
    try:
        assert wait(fork(url)) == 0
    finally:
        over.set()
        thread.join()


def fork(url: str) -> int:
    """A child that looks up afresh, and exits with 0 where it finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads: that is it
        child = os.fork()
    if child == 0:
        end = 1
        try:
            forget_lookups()
            end = 0 if look_up(url, 80) else 2
        finally:
            os._exit(end)
    return child


def wait(child: int) -> int | str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"
