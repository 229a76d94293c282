"""A driver's folder: its own while it lives, swept by others once it is gone, left alone by them before."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.processes.folder import OwnFolder


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_behind(place: Path) -> Path:
    """The folder of a process that has ended without closing it."""
    code = "import os; from autotune.processes.folder import OwnFolder; print(OwnFolder().path, flush=True)"
    command = [sys.executable, "-c", f"{code}; os._exit(1)"]
    done = subprocess.run(command, capture_output=True, text=True, env={"TMPDIR": str(place), "PYTHONPATH": "."})
    return Path(done.stdout.strip())


def test_it_is_there_until_it_is_closed(place: Path) -> None:
    folder = OwnFolder()
    (folder.path / "log").write_text("words")
    folder.close()
    assert list(place.iterdir()) == []


def test_what_a_dead_process_has_left_is_swept(place: Path) -> None:
    left = left_behind(place)
    assert left.parent == place and left.is_dir()
    OwnFolder().close()
    assert not left.exists()


def test_the_folder_of_a_process_that_lives_stays(place: Path) -> None:
    first = OwnFolder()
    second = OwnFolder()
    assert first.path.is_dir() and second.path.is_dir()
    code = "from autotune.processes.folder import OwnFolder; OwnFolder().close()"
    subprocess.run([sys.executable, "-c", code], check=True, env={"TMPDIR": str(place), "PYTHONPATH": "."})
    assert sorted(place.iterdir()) == sorted([first.path, second.path])
    first.close()
    second.close()


def test_folders_that_are_not_ours_stay(place: Path) -> None:
    others = [place / "iris-autotune-without-a-lock", place / "somebody-elses"]
    for other in others:
        other.mkdir()
    (others[1] / "lock").touch()
    OwnFolder().close()
    assert sorted(place.iterdir()) == sorted(others)
