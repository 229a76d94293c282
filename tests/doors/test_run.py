"""The doors' runner: what fails, what cannot be had and what is cut off are told apart, and nothing runs on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from doors import run as doors

TESTS = {
    "passed": "def test(): pass",
    "failed": "def test(): assert False",
    "cut off": """
        import os, pathlib, time
        def test():
            try:
                pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))
                pathlib.Path(__file__).with_name('began').touch()
                time.sleep(600)
            finally:
                pathlib.Path(__file__).with_name('ended').touch()
    """,
}


def wait_for(file: Path) -> float:
    while not file.exists():
        time.sleep(0.02)
    return 0.0


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> doors.Door:
    monkeypatch.setattr(doors, "FOLDER", tmp_path)
    monkeypatch.setattr(doors, "ROOT", tmp_path)
    return doors.Door((str(tmp_path),), ())


@pytest.mark.parametrize("ends", TESTS)
def test_tests_fail_or_are_cut_off(
    ends: str, door: doors.Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "lacking", lambda *_: "")
    (tmp_path / "test_it.py").write_text("\n".join(line.removeprefix(" " * 8) for line in TESTS[ends].splitlines()))
    if ends == "cut off":
        monkeypatch.setattr(doors, "left", lambda _: wait_for(tmp_path / "began"))
    assert doors.outcome("it", door) == ends
    if ends == "cut off":
        assert (tmp_path / "ended").exists(), "its fixtures have ended what they had started"
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_packages_that_cannot_be_had_in_time_are_cut_off_and_those_that_nobody_has_left_out(
    door: doors.Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    nowhere = doors.Door(door.tests, (), ("--no-index", "iris-autotune-no-such-package"))
    assert doors.outcome("it", nowhere) == "left out"
    assert "iris-autotune-no-such-package" in capfd.readouterr().out
    assert doors.outcome("it", nowhere, time.monotonic()) == "cut off"
    monkeypatch.setattr(doors, "FOLDER", tmp_path / "absent" / "folder")
    assert doors.outcome("it", nowhere) == "left out"
