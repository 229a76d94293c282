"""Fixtures of the store's tests: fresh databases of each kind, a key, a provenance, records, a user without rights."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres_server import KINDS, empty, empty_database, server  # noqa: F401
from sqlalchemy import URL
from studies import as_text, begin

from autotune.db import Store

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, path: Path) -> Iterator[URL]:
    """Of an empty database, once of each kind."""
    with empty(request, path) as found:
        yield found


@pytest.fixture(autouse=True)
def new_files_are_copies() -> None:
    """They are not here: this is where the tables are made."""


@pytest.fixture(params=KINDS)
def store_url(request: pytest.FixtureRequest, path: Path) -> Iterator[URL]:
    """Of an empty store, once on each kind of database."""
    with empty(request, path, tables=True) as found:
        yield found


@pytest.fixture
def store(store_url: URL) -> Iterator[Store]:
    with Store.open(as_text(store_url)) as opened:
        yield opened


@pytest.fixture
def sqlite_store(path: Path, empty_file: Path) -> Iterator[Store]:
    shutil.copy(empty_file, path)
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def study(store: Store) -> int:
    return begin(store).id


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
