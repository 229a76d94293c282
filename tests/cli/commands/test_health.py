from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Bench

from autotune.doctor import Host
from autotune.doctor.examination import checks


def test_doctor_on_this_machine(laptop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "compile_kernel", lambda *_: "")  # the slowest check; the doctor's tests run it
    result = laptop.tune("doctor", "--json")
    values = json.loads(result.stdout)
    found = {each["check"]: each for each in values["findings"]}
    assert list(found) == list(checks("any"))
    broken = [each for each in found.values() if each["verdict"] == "broken"]
    assert (result.exit_code, values["fine"]) == (1 if broken else 0, not broken)
    assert all(each["found"] for each in found.values())
    assert all(bool(each["mend"]) == (each["verdict"] != "fine") for each in found.values())
    assert not (tmp_path / "cache.db").exists()


def test_doctor_says_how_to_fix_it(laptop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "compile_kernel", lambda *_: "")  # the slowest check
    notes = tmp_path / "notes.txt"
    notes.write_text("somebody's notes\n" * 50)
    result = laptop.tune("doctor", "--db", str(notes))
    lines = result.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("database  "))
    assert result.exit_code == 1 and "broken: " in lines[at] and lines[at + 1].strip().startswith("→ ")
    assert notes.read_text() == "somebody's notes\n" * 50


@pytest.mark.gpu
def test_doctor_on_gpus(gpus: Bench) -> None:
    found = {each["check"]: each for each in gpus.json("doctor")["findings"]}
    assert "no GPU" not in found["GPUs"]["found"] and not found["GPUs"]["found"].startswith("could not")
    for check in ("links", "peer access", "clocks", "GPU memory", "shared memory", "compiler", "launcher", "Iris"):
        assert not found[check]["found"].startswith(("could not", "unknown")), found[check]
