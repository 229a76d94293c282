"""Files and URLs that the store opens, and those that it refuses and leaves as they are."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sample import KEY, PROVENANCE, TRIAL, WINNER
from studies import fill, refusal

from autotune.db import Store
from autotune.db.engines.sqlite import APPLICATION_ID, locked
from autotune.errors import StoreError

Unprivileged = Callable[[Callable[[], str]], str]


@pytest.mark.parametrize("name", ["deep/er/cache.db", "with space ?#%25 ü.db", "noending", os.fsdecode(b"caf\xe9.db")])
def test_a_path_or_a_url_makes_the_same_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Store.open(str(path)) as store:
        study = store.study(KEY, PROVENANCE, seed=1, space_size=1)
    assert path.is_file()
    with Store.open(path, create=False) as store:
        assert store.place == str(path)
        assert store.studies() == [study]


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open("here.db") as store:
        monkeypatch.chdir("/")
        store.study(KEY, PROVENANCE, seed=1, space_size=1)
    assert (tmp_path / "here.db").is_file()


def test_an_empty_file_and_a_link_are_filled(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    (tmp_path / "link.db").symlink_to("empty.db")
    with Store.open(tmp_path / "link.db") as store:
        store.study(KEY, PROVENANCE, seed=1, space_size=1)
    assert (tmp_path / "link.db").is_symlink()
    with Store.open(tmp_path / "empty.db", create=False) as store:
        assert len(store.studies()) == 1


def test_the_journal_of_a_deleted_database_is_not_replayed(path: Path) -> None:
    with Store.open(path) as store:
        store.study(KEY, PROVENANCE, seed=1, space_size=1)
        leftover = path.with_name("cache.db-wal").read_bytes()
    path.unlink()
    path.with_name("cache.db-wal").write_bytes(leftover)
    with Store.open(path) as store:
        assert store.studies() == []


def test_a_draft_left_by_a_killed_process_is_no_obstacle(path: Path) -> None:
    path.with_name("cache.db.new").write_bytes(b"half a database")
    path.with_name("cache.db.new-journal").write_bytes(b"half a journal")
    with Store.open(path) as store:
        assert store.studies() == []
    assert not path.with_name("cache.db.new").exists()


def test_a_missing_file_is_not_made_by_a_lookup(path: Path) -> None:
    assert str(path) in refusal(path, create=False)
    assert list(path.parent.iterdir()) == []


def made_by_another(path: Path, statement: str, application: int = 0) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {application}")
        connection.execute(statement)
        connection.execute("PRAGMA journal_mode = WAL")


def truncated(path: Path, share: float) -> None:
    fill(path, 200)
    os.truncate(path, int(path.stat().st_size * share))


def without_text(path: Path, *places: bytes) -> None:
    """With bytes in the schema that are no text, which SQLite quotes in what it says."""
    Store.open(path).close()
    content = path.read_bytes()
    for place in places:
        content = content.replace(place, place[:-3] + b"\xff\xfe" + place[-1:], 1)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: made_by_another(path, "CREATE TABLE studies (study_id INTEGER)"), "another program's"),
        (lambda path: made_by_another(path, "CREATE TABLE tuning_trials (in_the_way INTEGER)", APPLICATION_ID),
         "tuning_trials"),
        *((lambda path, content=content: path.write_bytes(content), "not a SQLite database")
          for content in (b"x" * 511, b"x" * 512, b"SQLite format 3\0" + b"\xff" * 5000)),
        *((lambda path, share=share: truncated(path, share), "damaged") for share in (0.9, 0.5, 0.1)),
        (lambda path: without_text(path, b"CREATE TABLE tuning_studies"), "damaged"),
        (lambda path: without_text(path, b"CREATE TABLE tuning_studies", b"tabletuning_studiestuning_studies"),
         "damaged"),
    ],
)  # fmt: skip
def test_what_is_no_store_is_refused_and_left_as_it_is(path: Path, make: Callable[[Path], None], told: str) -> None:
    make(path)
    before = path.read_bytes()
    for create in (True, told != "another program's"):
        assert told in refusal(path, create=create)
    assert path.read_bytes() == before
    assert told != "another program's" or [*path.parent.iterdir()] == [path]


def test_a_database_overwritten_inside_is_refused_when_read(path: Path) -> None:
    fill(path, 200)
    content = bytearray(path.read_bytes())
    content[-5 * 4096 :] = b"\xff" * (5 * 4096)
    path.write_bytes(content)
    with Store.open(path) as store, pytest.raises(StoreError, match="damaged"):
        store.trials(1)


def test_a_database_without_its_tables_is_refused_when_read(path: Path) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE tuning_studies")
    with Store.open(path) as store, pytest.raises(StoreError, match="tuning_studies"):
        store.studies()


def test_what_is_no_file_and_can_be_none_is_refused(tmp_path: Path, path: Path) -> None:
    pipe, file, loop = tmp_path / "pipe", tmp_path / "file", tmp_path / "loop"
    os.mkfifo(pipe)
    file.write_bytes(b"x")
    loop.symlink_to("loop")
    for place in (tmp_path, pipe, file / "below" / "cache.db", loop):
        assert str(place) in refusal(place)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)])
def test_a_read_only_database_is_read_but_not_written(
    public_folder: Path, unprivileged: Unprivileged, file_mode: int, folder_mode: int
) -> None:
    path = public_folder / "cache.db"
    fill(path, 3)
    path.chmod(file_mode)
    public_folder.chmod(folder_mode)

    def use() -> str:
        with Store.open(path) as store:
            entry = store.entry(KEY, PROVENANCE)
            assert entry is not None and entry.winner == WINNER and len(store.trials(1)) == 3
            with pytest.raises(StoreError) as caught:
                store.record(1, TRIAL)
        return str(caught.value)

    names = sorted(file.name for file in public_folder.iterdir())
    assert "read-only" in unprivileged(use)
    assert sorted(file.name for file in public_folder.iterdir()) == names


@pytest.mark.parametrize("exists", [False, True])
def test_what_may_not_be_used_is_refused(public_folder: Path, unprivileged: Unprivileged, exists: bool) -> None:
    path = public_folder / "cache.db"
    if exists:
        Store.open(path).close()
        path.chmod(0)
    public_folder.chmod(0o555)
    before = sorted(public_folder.iterdir())
    assert str(path) in unprivileged(lambda: refusal(path))
    assert sorted(public_folder.iterdir()) == before


def test_a_database_deleted_underneath_is_not_made_again(path: Path) -> None:
    store = Store.open(path)
    store.close()
    path.unlink()
    with pytest.raises(StoreError, match="opened"):
        store.study(KEY, PROVENANCE, seed=1, space_size=1)
    assert not path.exists()


def test_what_is_measured_is_not_written_into_a_file_that_nobody_finds(path: Path) -> None:
    with Store.open(path.with_name("other.db")) as other:
        other.study(KEY, PROVENANCE, seed=1, space_size=1)
    with Store.open(path) as store:
        study = store.study(KEY, PROVENANCE, seed=1, space_size=1)
        path.rename(path.with_name("moved.db"))
        with pytest.raises(StoreError):
            store.record(study.id, TRIAL)
        path.with_name("other.db").rename(path)
        with pytest.raises(StoreError, match="cache.db-wal"):
            store.finish(study.id, WINNER)
        path.with_name("moved.db").rename(path)
        store.record(study.id, TRIAL)
        assert store.trials(study.id) == [TRIAL]


def test_a_lookup_in_the_same_process_does_not_drop_the_writers_locks(path: Path) -> None:
    with Store.open(path) as store:
        study = store.study(KEY, PROVENANCE, seed=1, space_size=1)
        Store.open(path, create=False).close()
        # leaving WAL needs the file for oneself; asked by another process, since locks are held by process
        leave = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('PRAGMA journal_mode = DELETE')"
        other = subprocess.run([sys.executable, "-c", leave, str(path)], capture_output=True, text=True)
        assert "database is locked" in other.stderr
        store.record(study.id, TRIAL)
        assert store.trials(study.id) == [TRIAL]


def test_a_file_into_which_another_process_writes_its_journal_just_now_opens(tmp_path: Path, path: Path) -> None:
    copy = tmp_path / "copy.db"
    with Store.open(path) as store:
        fill(path, 100)
        for ending in ("", "-wal"):
            copy.with_name(copy.name + ending).write_bytes(path.with_name(path.name + ending).read_bytes())
    header = bytearray(copy.read_bytes())
    header[28:32] = (10_000).to_bytes(4)  # page 1 has been written back, with the new number of pages; the rest not yet
    header[92:96] = header[24:28]
    copy.write_bytes(header)
    unlocked = sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)
    with closing(unlocked), pytest.raises(sqlite3.DatabaseError, match="malformed"):
        unlocked.execute("PRAGMA application_id").fetchone()
    with Store.open(copy) as store:
        assert store.entry(KEY, PROVENANCE) is not None


def test_waiting_for_another_process_has_an_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.db.engines.sqlite.BUSY_SECONDS", 0.1)
    with locked(path), pytest.raises(StoreError, match="another process"):
        Store.open(path)
    with Store.open(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.studies() == []
        with pytest.raises(StoreError, match="locked"):
            store.study(KEY, PROVENANCE, seed=1, space_size=1)
        other.execute("COMMIT")
        store.study(KEY, PROVENANCE, seed=1, space_size=1)


@pytest.mark.parametrize("exists", [False, True])
def test_a_file_system_without_locks_is_named(path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    """To SQLite the file would be busy, and it would wait."""

    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if exists:
        Store.open(path).close()
    for name in ("flock", "lockf"):
        monkeypatch.setattr(f"autotune.db.engines.sqlite.fcntl.{name}", no_locks)
    with pytest.raises(StoreError, match="locks"):
        Store.open(path, create=not exists)


@pytest.mark.parametrize(
    "url",
    [
        "", ":memory:", "sqlite:///:memory:", "sqlite://host/cache.db", "sqlite:///cache.db?mode=ro",
        "mysql://me:secret@host/name", "postgresql+asyncpg://me:secret@host/name", "postgresql://me:secret@host:port/name",
    ],
)  # fmt: skip
def test_an_unusable_url_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "secret" not in refusal(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["postgresql://me:secret@host/name", "postgresql://me@host/name?password=secret"])
def test_a_missing_driver_is_named_without_the_password(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    message = refusal(url)
    assert "iris-autotune[postgresql]" in message and "secret" not in message
