from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Bench

from autotune.doctor import Host
from autotune.doctor.examination import checks


@pytest.mark.parametrize("notes", ["", "somebody's notes\n" * 50], ids=["no database", "another file"])
def test_doctor_on_this_machine(laptop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: str) -> None:
    monkeypatch.setattr(Host, "compile_kernel", lambda *_: "")  # the slowest check; the doctor's tests run it
    if notes:
        (tmp_path / "cache.db").write_text(notes)
    result = laptop.tune("doctor", "--json")
    values = json.loads(result.stdout)
    found = {each["check"]: each for each in values["findings"]}
    assert list(found) == list(checks("any"))
    broken = [each for each in found.values() if each["verdict"] == "broken"]
    assert (result.exit_code, values["fine"]) == (1 if broken else 0, not broken)
    assert all(each["found"] for each in found.values())
    assert all(bool(each["mend"]) == (each["verdict"] != "fine") for each in found.values())
    assert (found["database"]["verdict"] == "broken") == bool(notes)
    assert (tmp_path / "cache.db").read_text() == notes if notes else not (tmp_path / "cache.db").exists()


@pytest.mark.gpu
def test_doctor_on_gpus(gpus: Bench) -> None:
    found = {each["check"]: each for each in gpus.json("doctor")["findings"]}
    assert "no GPU" not in found["GPUs"]["found"] and not found["GPUs"]["found"].startswith("could not")
    for check in ("links", "peer access", "clocks", "GPU memory", "shared memory", "compiler", "launcher", "Iris"):
        assert not found[check]["found"].startswith(("could not", "unknown")), found[check]
