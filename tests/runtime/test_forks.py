"""Forks while threads look up: a data loader's workers are children of a program at work."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, begun, latency_of

import autotune
from autotune.db import Store, Winner
from autotune.runtime.lookup import forget_lookups
from autotune.task import Task
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
SECONDS = 300


def problem(m: int) -> autotune.AllGatherGemm:
    return autotune.AllGatherGemm(m=m, n=28672, k=8192, world_size=8)


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = tmp_path / "cache.db"
    with Store.open(path) as store:
        for m in range(8, 88, 8):
            task = Task(problem(m), EIGHT_GPUS)
            store.finish(begun(store, FOUND, task).id, Winner(FOUND.default_config(task), latency_of(100.0)))
    return str(path)


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
            assert forked(url) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert look_up(url, 24), "the parent goes on"


def test_a_fork_does_not_wait_for_a_lookup_that_hangs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.forks.FORK_SECONDS", 0.2)
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
        assert forked(url) == 0
    finally:
        over.set()
        thread.join()


FORKED_IN_FIRST_USES = """
import importlib, os, threading, torch, triton
import autotune, autotune.nn, autotune.workloads

PROBLEM = autotune.AllGatherGemm(m=64, n=64, k=64, world_size=2)
CONFIGS = [triton.Config({"BLOCK": block}) for block in (8, 16)]
X = torch.zeros(8)

@autotune.autotune(CONFIGS, key=["n"])
@triton.jit
def kernel(x, n, BLOCK: triton.language.constexpr):
    pass

USES = {
    "a workload": lambda: autotune.workloads.workload("moe_dispatch"),
    "a lazy name": lambda: autotune.moe_dispatch,
    "a lazy name of a package": lambda: autotune.nn.ColumnParallelLinear,
    "a look-up": lambda: autotune.lookup("all_gather_gemm", PROBLEM),
    "a launch": lambda: kernel[(1,)](X, 8),
}
load = importlib._bootstrap._load_unlocked

def waits_for_the_fork(spec):
    if threading.current_thread() is worker and not importing.is_set():
        importing.set()
        threading.Event().wait(0.3)
    return load(spec)

importlib._bootstrap._load_unlocked = waits_for_the_fork
for name, use in USES.items():
    importing = threading.Event()
    worker = threading.Thread(target=use)
    worker.start()
    while worker.is_alive() and not importing.wait(0.01):
        pass
    child = os.fork()
    if child == 0:
        use()
        os._exit(0)
    print(name, child, importing.is_set(), flush=True)
    os.waitpid(child, 0)
    worker.join()
print("none hangs")
"""


def test_a_child_forked_in_the_midst_of_a_first_use_does_not_hang(tmp_path: Path) -> None:
    """The thread stands in its first import when the fork begins."""
    script = tmp_path / "first_uses.py"
    script.write_text(FORKED_IN_FIRST_USES)
    settings = {"TRITON_INTERPRET": "1", "AUTOTUNE_DB": str(tmp_path / "none.db")}
    words = [sys.executable, "-P", str(script)]
    ran = subprocess.run(words, env=os.environ | settings, capture_output=True, text=True, timeout=SECONDS)
    *uses, end = ran.stdout.splitlines()
    assert end == "none hangs" and all(use.endswith(" True") for use in uses), ran.stdout + ran.stderr


def forked(url: str) -> int | None:
    """How a child that looks up ends; None if it hangs."""
    child = multiprocessing.get_context("fork").Process(target=in_a_child, args=(url,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads: that is it
        child.start()
    child.join(SECONDS)
    ended = child.exitcode
    child.kill()
    return ended


def in_a_child(url: str) -> None:
    forget_lookups()
    assert look_up(url, 80)
