"""For every test: its own user folders, shared processes, and GPU tests only on machines with GPUs."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The ranks' settings, for all processes: whichever is to be forked, the same server has imported its libraries.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
# Else torch sets it where it first compiles, and processes from then on are forked by a second server.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir(), "torchinductor_tests")))

gc.disable()  # until all tests are imported: a collection in their midst takes a fifth of a second, and frees nothing

RANKS_PER_GPU = int(os.environ.get("RANKS_PER_GPU", "1"))
"""Ranks that take turns on a GPU show that kernels are right at a world size that the machine has no GPUs for. NCCL
takes one rank a GPU, so the library's collectives are left out then."""


@functools.cache
def gpus() -> int:
    """The number of ranks that this machine's GPUs (CUDA or ROCm) can run: ``RANKS_PER_GPU`` of them (1 if not set)
    share each.
    """
    import torch

    return torch.cuda.device_count() * RANKS_PER_GPU if torch.cuda.is_available() else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """How many tests run at a time with ``-n auto``: one where GPUs are measured, else one more than there are cores,
    for ranks and drivers wait for each other.
    """
    measured = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
    return 1 if measured else min(4, len(os.sched_getaffinity(0)) + 1)


def pytest_collection_finish() -> None:
    """What is imported stays: collections during the tests pass it by, and are seldom, which saves 4 % of CPU time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more GPUs than there are, ``@pytest.mark.gpu`` or ``@pytest.mark.gpu(4)``, and what is slow.

    ``@pytest.mark.gpu(2, each=True)``: each rank needs one of its own, whatever ``RANKS_PER_GPU`` says.
    """
    if item.get_closest_marker("slow") and "slow" not in item.config.option.markexpr:
        pytest.skip("takes minutes: runs with -m slow")
    for mark in item.iter_markers("gpu"):
        needed = mark.args[0] if mark.args else 1
        found = gpus() // (RANKS_PER_GPU if mark.kwargs.get("each") else 1)
        if found < needed:
            pytest.skip(f"needs {needed} GPU{'s' if needed > 1 else ''}, this machine has {found or 'none'}")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The gangs that kernels' tests share end with the folder's last test: gloo looks for work 200 times a second in a
    rank that waits, which takes 0.4 % of a core. What the folder's tests have imported stays: at the run's end a
    collection took a third of a second, as a rank's set-up asks for, twenty times in ``ranks/test_answers.py``.
    """
    if nextitem is None or nextitem.path.parent != item.path.parent:
        if "every_mode" in sys.modules:
            sys.modules["every_mode"].RANKS.close()
        gc.collect()
        gc.freeze()


MANY_FILES = 20
"""From so many files on a run tells where its time went."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line why tests were skipped; name the files that took longest (see CONTRIBUTING.md)."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        told = "; ".join(f"{number} {reason}" for reason, number in reasons.most_common())
        terminalreporter.write_line(f"skipped: {told}")
    seconds = Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) >= MANY_FILES:
        longest = ", ".join(f"{file.removeprefix('tests/')} {time:.0f}" for file, time in seconds.most_common(12))
        terminalreporter.write_line(f"{seconds.total():.0f} s of tests, one after the other; longest: {longest}")


@pytest.fixture(scope="session", autouse=True)
def _shared_imports() -> None:
    """Interpreted gangs are forked where ``run_ranks`` forks, with this package imported: a rank then costs half as
    much, and there is one server less (``users_imports`` for tests of that very start).
    """
    import autotune.model_runs.ranks as model_ranks
    from autotune.machine import machine
    from autotune.ranks import gang

    if machine().is_interpreter:
        gang.IMPORTS = model_ranks.IMPORTS = "rank_imports"


@pytest.fixture
def users_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gangs start as a user's do: their ranks import the package themselves, as it lies on the disk."""
    from autotune.ranks import gang, imports

    monkeypatch.setattr(gang, "IMPORTS", imports.__name__)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An interpreted program of one rank, in this process."""
    import torch.distributed as dist

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def compilers() -> Iterator[Any]:
    """Processes that compile for GPUs that are not here."""
    from compile_worker import Compilers

    shared = Compilers()
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's file, to be copied: to make its tables takes longer than most tests."""
    from autotune.db import Store

    file = tmp_path_factory.mktemp("empty") / "cache.db"
    Store.open(file).close()
    return file


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """A new store without studies."""
    from autotune.db import Store

    with Store.open(tmp_path / "cache.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def new_files_are_copies(monkeypatch: pytest.MonkeyPatch, empty_file: Path) -> None:
    """A new database of this process is a copy of one that was made as a user's is; in ``tests/db`` each is made."""
    from autotune.db.engines import sqlite

    monkeypatch.setattr(sqlite, "_draft", lambda draft: shutil.copy(empty_file, draft))


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the developer's settings or touches their database."""
    for name in [name for name in os.environ if name.startswith("AUTOTUNE_")]:
        monkeypatch.delenv(name)
    if heap := os.environ.get("HEAP"):  # to run all GPU tests over that one
        monkeypatch.setenv("AUTOTUNE_HEAP", heap)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user-data"))
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def nothing_looked_up() -> None:
    """No test is served what another one has read."""
    if (lookup := sys.modules.get("autotune.runtime.lookup")) is not None:
        lookup.forget_lookups()
