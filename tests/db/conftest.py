"""Fixtures of the store's tests: fresh databases of each kind, a key, a provenance, records, a user without rights."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import URL

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Roofline, Routed, Store, TrialRecord, Winner
from autotune.outcome import Evaluation, Latency, Outcome

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
from postgres_server import empty_database, server  # noqa: F401
from studies import begin

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a database that does not exist yet."""
    return tmp_path / "cache.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, path: Path) -> Iterator[URL]:
    """Of an empty database, once of each kind."""
    if request.param == "sqlite":
        yield URL.create("sqlite", database=str(path))
    else:
        with request.getfixturevalue("server").new_database() as url:
            yield url


@pytest.fixture(autouse=True)
def new_files_are_copies() -> None:
    """They are not here: this is where the tables are made."""


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, path: Path) -> Iterator[URL]:
    """Of an empty store, once on each kind of database."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("empty_file"), path)
        yield URL.create("sqlite", database=str(path))
    else:
        with request.getfixturevalue("server").new_database(request.getfixturevalue("empty_database")) as url:
            yield url


@pytest.fixture
def store(store_url: URL) -> Iterator[Store]:
    """The same, open."""
    with Store.open(store_url.render_as_string(hide_password=False)) as opened:
        yield opened


@pytest.fixture
def sqlite_store(path: Path, empty_file: Path) -> Iterator[Store]:
    shutil.copy(empty_file, path)
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def key() -> CacheKey:
    """A key as the tuner makes them."""
    return CacheKey(
        workload="all_gather_gemm",
        problem='{"dtype":"bf16","k":8192,"m":4096,"n":28672,"world_size":8}',
        world_size=8,
        device="NVIDIA H200",
        arch="sm_90",
        interconnect="nvlink",
    )


@pytest.fixture
def provenance() -> Provenance:
    """A provenance as the tuner makes them."""
    return Provenance(source_hash="abc", space="f00d", triton="3.6.0", iris="0.0.0", torch="2.11.0", driver="580.1")


@pytest.fixture
def study(store: Store, key: CacheKey, provenance: Provenance) -> int:
    """The number of a study that has begun."""
    return begin(store, key, provenance).id


@pytest.fixture
def latency() -> Latency:
    """A latency with every field set that a trial's has."""
    return Latency(
        median=408.25, low=401.5, high=419.125, skew=3.5, iterations=50, by_rank=(405.0, 408.25), host=17.5,
        isolated=431.0,
    )  # fmt: skip


@pytest.fixture
def trial(latency: Latency) -> TrialRecord:
    """A measured trial with every field set."""
    evaluation = Evaluation(Outcome.MEASURED, "", latency, error=0.0017, seconds={"compile": 1.5, "measure": 0.25})
    return TrialRecord(
        Config({"mode": "push", "tile_m": 128, "split": True}), evaluation, source="sampler", number=7, predicted=391.5
    )


@pytest.fixture
def winner(trial: TrialRecord, latency: Latency) -> Winner:
    """A winner with every field set."""
    slower = Latency(530.0, 525.0, 540.0, 2.0, 50)
    best = replace(latency, rounds=(408.0, 408.5), host_rounds=(17.0, 18.0), isolated_rounds=(430.0, 432.0))
    best = replace(best, host_overhead=4.5, isolated_overhead=6.25)
    roofline = Roofline({"flops": 7.5e8, "memory": 4e6}, {"flops": 330.25, "links": 0.0})
    baselines = {"eager": slower, "graph": replace(slower, rounds=(529.0, 531.0))}
    routings = {"zipf 1": Routed(best, {"graph": slower}), "one expert": Routed(best)}
    return Winner(trial.config, best, baselines, limits={"gemm": latency}, roofline=roofline, routings=routings)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter, which tmp_path is not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def unprivileged() -> Callable[[Callable[[], str]], str]:
    """Runs a function in a child process that file permissions bind, even where the tests run as root."""

    def run(function: Callable[[], str]) -> str:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if os.getuid() == 0:
                    os.setuid(NOBODY)
                os.write(writer, function().encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        return text

    return run
