"""A driver's folder: its own while it lives, swept by others once it is gone, left alone by them before."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.errors import AutotuneError
from autotune.processes.folder import OwnFolder


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_behind(place: Path) -> Path:
    """The folder of a process that has ended without closing it."""
    code = "import os; from autotune.processes.folder import OwnFolder; print(OwnFolder().path, flush=True)"
    command = [sys.executable, "-c", f"{code}; os._exit(1)"]
    done = subprocess.run(command, capture_output=True, text=True, env={"TMPDIR": str(place), "PYTHONPATH": "."})
    return Path(done.stdout.strip())


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


def test_a_place_that_takes_none_is_said_in_a_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "file").touch()
    with pytest.raises(AutotuneError, match=f"{place}/file"):
        OwnFolder(place / "file")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", nowhere)
    with pytest.raises(AutotuneError, match="temporary"):
        OwnFolder()


def nowhere() -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")


def test_folders_that_are_not_ours_stay(place: Path) -> None:
    others = [place / "iris-autotune-without-a-lock", place / "somebody-elses"]
    for other in others:
        other.mkdir()
    (others[1] / "lock").touch()
    OwnFolder().close()
    assert sorted(place.iterdir()) == sorted(others)


def odd_entries(place: Path, kept: Path) -> list[Path]:
    """Entries that another user, or a mishap, may put into a shared folder."""

    def folder(name: str) -> Path:
        made = place / f"iris-autotune-{name}"
        made.mkdir()
        return made

    os.mkfifo(folder("fifo") / "lock")
    (folder("folder") / "lock").mkdir()
    (folder("loop") / "lock").symlink_to("lock")
    (folder("link") / "lock").symlink_to(kept / "lock")
    (place / "iris-autotune-linked").symlink_to(kept)
    (place / "iris-autotune-file").touch()
    os.mkfifo(place / "iris-autotune-a-fifo")
    return sorted(place.iterdir())


def test_odd_entries_are_left_and_hold_up_no_start(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    kept = tmp_path_factory.mktemp("elsewhere")
    (kept / "lock").touch()
    odd = odd_entries(place, kept)
    code = "from autotune.processes.folder import OwnFolder; OwnFolder().close()"
    environment = {"TMPDIR": str(place), "PYTHONPATH": "."}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)  # a FIFO would hang it
    assert sorted(place.iterdir()) == odd and (kept / "lock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")
def test_the_folder_of_another_user_stays_even_if_we_could_remove_it(place: Path) -> None:
    theirs = left_behind(place)
    os.chown(theirs, 12345, -1)
    planted = left_behind(place)
    os.chown(planted / "lock", 12345, -1)
    OwnFolder().close()
    assert sorted(place.iterdir()) == sorted([theirs, planted])
