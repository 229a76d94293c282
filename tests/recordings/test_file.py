"""The file: what was recorded comes back, and every kind of damage is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS
from reduced_space import FOUND

from autotune.errors import InputError
from autotune.recordings.file import read, write
from autotune.recordings.recording import Recording


@pytest.fixture
def file(recording: Recording, tmp_path: Path) -> Path:
    path = tmp_path / "table.json.gz"
    write(recording, path)
    return path


def edited(file: Path, change: Callable[[Any], None]) -> None:
    values = json.loads(gzip.decompress(file.read_bytes()))
    change(values)
    file.write_bytes(gzip.compress(json.dumps(values).encode()))


def without_rows(values: Any) -> None:
    columns = values["columns"]
    for column in (*columns.pop("dimensions").values(), *columns.values()):
        column.clear()
    columns["dimensions"] = {name: [] for name in values["dimensions"]}


def test_a_recording_comes_back_and_writes_the_same_bytes(recording: Recording, tmp_path: Path, file: Path) -> None:
    before, found = recording, read(file)
    assert list(found.evaluations) == list(before.evaluations)
    for config, evaluation in before.evaluations.items():
        again = found.evaluations[config]
        assert (again.outcome, again.reason) == (evaluation.outcome, evaluation.reason)
        if evaluation.latency is not None and again.latency is not None:
            assert again.latency.median == pytest.approx(evaluation.latency.median, abs=1e-3)
            assert again.latency.iterations == evaluation.latency.iterations
    assert (found.machine, found.provenance, found.origin) == (EIGHT_GPUS, before.provenance, "measured")
    assert found.parts == before.parts and found.problem_of(FOUND) == before.problem_of(FOUND)
    copy = tmp_path / "copy.json.gz"
    write(found, copy)
    assert copy.read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda v: v.update(format="other"), "tune record"),
        (lambda v: v.update(version=2), "version 2"),
        (lambda v: v.pop("machine"), "machine: missing"),
        (lambda v: v["machine"].update(gpus="eight"), "machine.gpus: expected an integer"),
        (lambda v: v["machine"].update(arch="sm_x"), "sm_x"),
        (lambda v: v["restriction"].update(tile=[4]), "tile"),
        (lambda v: v["parts"].update(gemm={"median": "fast"}), "parts.gemm.median: expected a number"),
        (without_rows, "no config that was measured"),
        (lambda v: v["columns"]["median"].pop(), "median"),
        (lambda v: v["columns"]["dimensions"].pop("mode"), "dimensions"),
        (lambda v: v["columns"]["outcome"].__setitem__(3, 99), "99"),
        (lambda v: v["columns"]["dimensions"]["mode"].__setitem__(0, 7), "index 7"),
        (lambda v: v["columns"]["low"].__setitem__(0, None), "row 0 lacks low"),
        (lambda v: v["columns"]["low"].__setitem__(0, 1e9), "low .1000000000.0. is above high"),
    ],
)
def test_a_damaged_table_is_refused_with_what_is_wrong(file: Path, change: Callable[[Any], None], told: str) -> None:
    edited(file, change)
    with pytest.raises(InputError, match=told) as error:
        read(file)
    assert str(file) in str(error.value)


def test_a_truncated_a_foreign_and_a_missing_file_are_refused(recording: Recording, file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"not gzip", gzip.compress(b"not json"), gzip.compress(b"[]"), b""):
        file.write_bytes(content)
        with pytest.raises(InputError, match="tune record"):
            read(file)
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "none.json.gz")
    with pytest.raises(InputError, match="no/folder"):
        write(recording, Path("no/folder/table.json.gz"))
