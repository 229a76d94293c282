"""What a decorated kernel stored: shown, reported, exported, imported elsewhere and served there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Bench
from small_kernels import SIZES, Clock, copy, grid, tensors

import autotune
from autotune.db import Store
from autotune.runtime.entries import forget_entries

KEY = "copy --n 200 --x.dtype float32"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which a program has tuned its kernel ``copy`` for two sizes."""
    file = tmp_path_factory.mktemp("tuned") / "cache.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        launched(Clock(3, 1, 2), 200, db=str(file))
        launched(Clock(1, 2, 3), 64, db=str(file))
    return file


@pytest.fixture
def kernel(laptop: Bench, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shutil.copy(tuned, tmp_path / "cache.db")
    forget_entries()
    return laptop


def launched(clock: Clock, n: int, **options: Any) -> Any:
    decorated = autotune.autotune(**{"configs": SIZES, "key": ["n"], "do_bench": clock, **options})(copy())
    decorated.forget()
    out, x = tensors(n)
    decorated[grid](out, x, n)
    torch.testing.assert_close(out, x)
    (found,) = decorated.decisions.values()
    return found


def test_reports_and_exports_of_a_given_database(
    kernel: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, pages = ("--db", str(tmp_path / "here.db")), tmp_path / "pages"
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "empty.db"))
    (tmp_path / "cache.db").rename(tmp_path / "here.db")
    Store.open().close()
    assert kernel.tune("report", *KEY.split(), *db).stdout.startswith("# copy: n=200")
    assert kernel.tune("report", "copy", *db, "--all", "-o", str(pages)).exit_code == 0
    assert len([*pages.glob("*.html")]) == 3, "two, and their index"
    assert len(json.loads(kernel.tune("export", "copy", *db).stdout)["entries"]) == 2


def test_a_file_takes_it_to_another_machine_where_a_launch_is_served(kernel: Bench, tmp_path: Path) -> None:
    file, there = tmp_path / "configs.json", str(tmp_path / "there.db")
    assert kernel.tune("export", "copy", "-o", str(file)).exit_code == 0
    assert {entry["origin"] for entry in json.loads(file.read_text())["entries"]} == {"small_kernels.py:copy"}
    tried = kernel.tune("import", str(file), "--dry-run", "--db", there)
    assert tried.exit_code == 0 and not Path(there).exists()
    for _ in range(2):
        assert kernel.tune("import", str(file), "--db", there).exit_code == 0
    found = launched(Clock(), 200, db=there)
    assert (found.source, found.config["BLOCK"]) == ("exact", 64)
    assert kernel.tune("export", "copy", "--db", there).stdout == file.read_text()


def test_odd_key_arguments_travel_too(kernel: Bench, tmp_path: Path) -> None:
    values = json.loads(kernel.tune("export", *KEY.split()).stdout)
    values["entries"][0]["problem"] |= {"scale": 1.5, "flag": None, "shape": [1, [2, "x"], True]}
    file, there = tmp_path / "configs.json", str(tmp_path / "there.db")
    file.write_text(json.dumps(values))
    assert kernel.tune("import", str(file), "--db", there).exit_code == 0
    assert json.loads(kernel.tune("export", "--db", there).stdout) == values


def test_a_workload_of_a_file_names_it_and_loads_none(
    toy: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert toy.tune("toy-sum", "--trials", "5").exit_code == 0
    file, there = tmp_path / "configs.json", str(tmp_path / "there.db")
    exported = toy.tune("export", "toy-sum").stdout
    [entry] = json.loads(exported)["entries"]
    assert entry["origin"] == "toy_workload.py:ToyWorkload"
    monkeypatch.delenv("AUTOTUNE_WORKLOADS")
    monkeypatch.chdir(tmp_path)
    Path("toy_workload.py").write_text("raise SystemExit('it ran')")
    for text in (exported, exported.replace("toy_workload.py:ToyWorkload", str(tmp_path / "toy_workload.py:Toy"))):
        file.write_text(text)
        result = toy.tune("import", str(file), "--db", there)
        assert result.exit_code == 1 and "AUTOTUNE_WORKLOADS" in result.stdout
        assert entry["provenance"]["source_hash"] in result.stdout
    assert toy.json("list", "--db", there) == []


@pytest.mark.parametrize("file", [None, "notes.db", "cache.db", "no/such.db"])
def test_no_other_file_becomes_an_optuna_storage(kernel: Bench, tmp_path: Path, file: str | None) -> None:
    (tmp_path / "notes.db").write_text("somebody's notes\n" * 100)
    before = (tmp_path / "cache.db").read_bytes()
    output = ["-o", str(tmp_path / file)] if file else []
    assert kernel.tune("export", "copy", "--format", "optuna", *output).exit_code == 2
    assert (tmp_path / "cache.db").read_bytes() == before
