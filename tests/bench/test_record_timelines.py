"""bench/record_timelines.py: a table gets the calls that a demo of it shows, and only on its own machine."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import record_timelines
from fakes import LAPTOP, FakeGang, FakeScreen

from autotune.recordings import tables
from autotune.recordings.file import read, write


class Gang(FakeGang):
    def __init__(self, workload: Any, task: Any) -> None:
        super().__init__(task.problem)

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_demo_of_the_table_shows_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, file = dataclasses.replace(read(tables.file_of("ar-64")), timeline={}), tmp_path / "table.json.gz"
    write(table, file)
    monkeypatch.setattr(record_timelines, "Gang", Gang)
    monkeypatch.setattr(record_timelines, "Screen", FakeScreen)
    monkeypatch.setattr(record_timelines, "machine_here", lambda: table.machine)
    monkeypatch.setattr(sys, "argv", ["record_timelines.py", str(file)])
    record_timelines.main()
    again = read(file)
    assert dataclasses.replace(again, timeline={}) == table
    modes = {each["mode"] for each in again.evaluations if each.to_json() in again.timeline}
    assert modes > {"bsp"}, "those that still run"


def test_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["record_timelines.py", str(tables.file_of("ar-64"))])
    monkeypatch.setattr(record_timelines, "machine_here", lambda: LAPTOP)
    with pytest.raises(SystemExit):
        record_timelines.main()
    assert "NVIDIA H200" in capsys.readouterr().err
