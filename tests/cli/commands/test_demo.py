"""``tune demo``: the real loop over a recorded table, whose result nobody is served."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
from fakes import Bench
from typer.testing import Result

from autotune.db import CacheKey, Store
from autotune.outcome import Evaluation, Outcome
from autotune.recordings import tables
from autotune.recordings.file import read
from autotune.recordings.replay import Replay
from autotune.runtime.lookup import lookup
from autotune.task import Task
from autotune.workloads import provenance_of, workload

RECORDED = read(tables.file_of("ar-64"))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "user-data" / "iris-autotune" / "demo" / "ar-64.db"


def test_the_best_of_a_table_is_found_and_the_report_is_the_next_step(laptop: Bench, database: Path) -> None:
    found = laptop.tune("demo", "ar-64")
    assert found.exit_code == 0, found.output
    latency = re.search(r"winner: .* ([\d.]+) µs", found.stdout)
    assert latency is not None and float(latency[1]) <= 1.02 * RECORDED.optimum
    assert "4 × H200" in found.stdout and "2026-11-21" in found.stdout
    assert not re.search(r"± 0\.0+\b", found.stdout), "a table that answers the same each time is not an error of zero"
    place = re.search(r"study 1 in (\S+)", found.stdout)
    report = laptop.tune("report", "--db", place[1])
    assert report.exit_code == 0 and "2026-11-21" in report.stdout
    assert laptop.tune("list").stdout == "", "the user's own database has nothing of it"
    assert database.exists()


def test_a_data_folder_that_cannot_be_written(laptop: Bench, database: Path) -> None:
    database.parents[2].write_text("a file where a folder should be")
    found = laptop.tune("demo", "ar-64", "--trials", "8")
    assert found.exit_code == 0, found.output
    elsewhere = re.search(r"the demo's database is in (.+)", found.stderr)
    assert elsewhere is not None and f"{elsewhere[1]}/ar-64.db" in found.stdout
    shutil.rmtree(elsewhere[1])


def test_an_earlier_demo_gives_the_search_no_start(laptop: Bench, database: Path) -> None:
    for _ in range(2):
        assert laptop.tune("demo", "ar-64", "--trials", "8").exit_code == 0
    with Store.open(database) as store:
        (study,) = store.studies()
        assert not any(trial.source == "warm" for trial in store.trials(study.id))


def test_a_second_demo_has_another_database(laptop: Bench, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Replay] = []
    second: list[Result] = []

    def start(self: Replay) -> None:
        started.append(self)
        if len(started) == 1:
            second.append(laptop.tune("demo", "ar-64", "--trials", "4"))

    monkeypatch.setattr(Replay, "start", start)
    found = laptop.tune("demo", "ar-64", "--trials", "8")
    assert found.exit_code == 0 and f"study 1 in {database}\n" in found.stdout, found.output
    elsewhere = re.search(r"another demo of this table is running; this one's database is in (.+)", second[0].stderr)
    assert second[0].exit_code == 0 and elsewhere is not None
    shutil.rmtree(elsewhere[1])


def test_no_look_up_serves_it_even_on_that_very_machine(laptop: Bench, database: Path) -> None:
    found = workload("gemm_all_reduce")
    problem = RECORDED.problem_of(found)
    assert laptop.tune("demo", "ar-64", "--trials", "8").exit_code == 0
    with Store.open(database) as store:
        assert store.nearest(key := CacheKey.of(Task(problem, RECORDED.machine))).key == key  # type: ignore[union-attr]
        assert store.entry(key, provenance_of(found)) is None
    served = lookup(found, problem, machine=RECORDED.machine, url=str(database))
    assert served.source == "predicted"


def of_workload(name: str, file: Path) -> Path:
    values = json.loads(gzip.decompress(tables.file_of("ar-64").read_bytes()))
    file.write_bytes(gzip.compress(json.dumps({**values, "workload": name}).encode()))
    return file


def test_a_table_loads_no_file_that_it_names(laptop: Bench, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    result = laptop.tune("demo", str(of_workload(f"{tmp_path}/evil.py:It", tmp_path / "table.json.gz")))
    assert result.exit_code == 2 and "AUTOTUNE_WORKLOADS" in result.stderr and not (tmp_path / "ran").exists()


def test_where_nothing_could_be_measured_it_fails(laptop: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = {config: Evaluation(Outcome.CRASHED, "made to") for config in RECORDED.evaluations}
    monkeypatch.setattr(
        "autotune.recordings.file.read", lambda file: dataclasses.replace(RECORDED, evaluations=crashed)
    )
    assert laptop.tune("demo", "ar-64", "--trials", "3").exit_code == 1
