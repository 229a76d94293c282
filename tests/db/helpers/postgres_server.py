"""A PostgreSQL server of the tests' own: made in a temporary folder, spoken to over a socket in it, then removed."""

from __future__ import annotations

import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, text

from autotune.db import Store

SERVER_USERS = ("postgres", "nobody")
"""Users to run the server as if the tests run as root, which PostgreSQL refuses."""


def find(program: str) -> str:
    """The newest of the installed ones; skips the test where there is none."""
    places = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}") + glob.glob(f"/usr/pgsql-*/bin/{program}"))
    found = shutil.which(program) or (places[-1] if places else None)
    if found is None:
        pytest.skip(f"no PostgreSQL server here: {program} was not found")
    return found


class Server:
    def __init__(self, folder: Path, control: Callable[..., None]) -> None:
        self._folder, self._control = folder, control
        self._numbers = itertools.count()
        self._administration = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT", pool_pre_ping=True)

    def stop(self) -> None:
        self._administration.dispose()
        self._control("-m", "immediate", "stop")

    def start(self) -> None:
        self._control("-l", f"{self._folder}/log", "-o", _options(self._folder), "start")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes are there and do not move."""
        leader = int((self._folder / "data/postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
        processes = [leader, *map(int, children)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    def url(self, database: str) -> URL:
        return URL.create("postgresql+psycopg", "tuner", database=database, query={"host": str(self._folder)})

    def run(self, statement: str) -> None:
        with self._administration.connect() as connection:
            connection.execute(text(statement))

    @contextmanager
    def new_database(self, template: str = "template1") -> Iterator[URL]:
        """An empty one, or a copy of another one that nobody is connected to."""
        name = f"tests{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield self.url(name)
        self.run(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def running() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="no driver psycopg here: pip install 'iris-autotune[postgresql]'")
    initdb, pg_ctl = find("initdb"), find("pg_ctl")
    who = as_server_user() if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # not pytest's: the path of a socket has some 100 bytes at most
    if who:
        shutil.chown(folder, who["user"])

    def call(*words: str) -> None:
        done = subprocess.run(words, **who, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"{words[0]}: {done.stderr}"

    try:
        call(initdb, "-D", f"{folder}/data", "-U", "tuner", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C")
        server = Server(folder, lambda *words: call(pg_ctl, "-D", f"{folder}/data", "-w", *words))
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A running PostgreSQL server; skips where none is installed."""
    with running() as started:
        yield started


@pytest.fixture(scope="session")
def empty_database(server: Server) -> Iterator[str]:
    """The name of a database of it with a store's tables, to be copied: to make those takes longer than most tests."""
    with server.new_database() as url:
        Store.open(url.render_as_string(hide_password=False)).close()
        yield str(url.database)


KINDS = ("sqlite", "postgresql")


@contextmanager
def empty(request: pytest.FixtureRequest, file: Path, *, tables: bool = False) -> Iterator[URL]:
    """The URL of an empty database of the kind that the fixture was asked for, bare or with a store's tables."""
    if request.param == "sqlite":
        if tables:
            shutil.copy(request.getfixturevalue("empty_file"), file)
        yield URL.create("sqlite", database=str(file))
    else:
        template = request.getfixturevalue("empty_database") if tables else "template1"
        with request.getfixturevalue("server").new_database(template) as found:
            yield found


def _options(folder: Path) -> str:
    return f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"


def as_server_user() -> dict[str, Any]:
    """Arguments with which subprocess.run becomes a user whom PostgreSQL accepts."""
    known = {user.pw_name: user for user in pwd.getpwall()}
    user = next(known[name] for name in SERVER_USERS if name in known)
    return {"user": user.pw_name, "group": user.pw_gid, "extra_groups": []}
