from __future__ import annotations

import os
import resource
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from autotune.errors import AutotuneError, InputError
from autotune.files import text_of, write_whole


@pytest.mark.parametrize("links", [0, 2])
def test_a_write_that_fails_leaves_the_older_file(tmp_path: Path, links: int) -> None:
    file = named = tmp_path / "configs.json"
    file.write_bytes(b"older")
    for number in range(links):
        named, before = tmp_path / f"link{number}", named
        named.symlink_to(before.name)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as a full disk: there is room for a part
    try:
        with pytest.raises(InputError, match=named.name):
            write_whole(named, b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == b"older" and len(list(tmp_path.iterdir())) == 1 + links


def test_a_link_to_nothing_makes_its_file_and_a_ring_of_links_is_told(tmp_path: Path) -> None:
    link, ring = tmp_path / "link", tmp_path / "ring"
    link.symlink_to("made.json")
    made = tmp_path / "made.json"
    write_whole(link, b"first")
    made.chmod(0o640)
    write_whole(link, b"second")
    assert made.read_bytes() == b"second" and stat.S_IMODE(made.stat().st_mode) == 0o640 and link.is_symlink()
    ring.symlink_to(ring)
    with pytest.raises(InputError, match="ring"):
        write_whole(ring, b"first")


def test_what_a_process_has_open_stays_that_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("wb") as opened:
        number = os.stat(file).st_ino
        write_whole(Path(f"/proc/self/fd/{opened.fileno()}"), b"first")
    assert file.read_bytes() == b"first" and os.stat(file).st_ino == number


def test_a_full_disk_is_a_failure_and_no_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "configs.json"
    file.write_bytes(b"older")
    opened = Path.open
    with monkeypatch.context() as full:
        full.setattr(
            Path, "open", lambda path, mode: opened(Path("/dev/full") if "x" in mode else path, mode.replace("x", "w"))
        )
        full.setattr(Path, "unlink", lambda path: None)  # the device stands for the draft
        with pytest.raises(AutotuneError, match="configs.json") as told:
            write_whole(file, b"newer")
    assert told.value.exit_code == 1 and file.read_bytes() == b"older"


def test_windows_editors_mark_before_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf{}")
    assert text_of(file) == "{}"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"all of it")
    assert os.read(reader, 100) == b"all of it" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_no_database_is_overwritten(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "cache.db")) as connection:
        connection.execute("CREATE TABLE results (a)")
    before = (tmp_path / "cache.db").read_bytes()
    with pytest.raises(InputError, match="database"):
        write_whole(tmp_path / "cache.db", b"configs")
    assert (tmp_path / "cache.db").read_bytes() == before


@pytest.mark.parametrize("name", ["", "missing/file", "."])
def test_what_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="^file "):
        write_whole(Path(name), b"")
