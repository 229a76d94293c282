"""make results: its steps resume, its pages have a place for every table, and writing them twice changes nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import results
import winners
from fakes import LAPTOP, bench_of
from process_ends import gone
from results import PAGES, Run
from results_tables import TABLES, Setting
from results_text import replaced
from scripts import run_script
from steps import JSON, LONGEST, Folder, Step, run_all

from autotune.machine import machine, versions

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench/results.py"
PLACE = {
    "machine": {
        "kind": "cuda", "device": "NVIDIA H200", "arch": "sm_90", "gpus": 4, "compute_units": 132, "shared_memory": 1,
        "cache_bytes": 1, "interconnect": "nvlink", "warp_size": 32,
    },
    "versions": {"triton": "3.6.0", "iris": "", "torch": "2.11.0", "driver": "580"},
}  # fmt: skip


def test_every_table_has_its_place_and_every_place_its_table() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text()
        names = re.findall(r"<!-- results: (\S+) -->", text)
        assert sorted(names) == sorted(table.name for table in TABLES if table.page == page)
        for name in names:
            replaced(text, name, "")  # raises where a marker is missing or there twice


def test_no_step_is_longer_than_may_be(tmp_path: Path) -> None:
    steps = Run(Folder(tmp_path, {}), Setting(4), list(TABLES)).steps
    assert all(0 < step.seconds <= LONGEST for step in steps)
    assert len({step.name for step in steps}) == len(steps)


def written(folder: Folder, name: str, code: str, seconds: float = 1.0) -> Step:
    """A step that runs these lines, with ``file`` for its result."""
    script = folder.path / f"{name}.py"
    script.write_text(f"import json, pathlib, sys, time\nfile = pathlib.Path(sys.argv[1])\n{code}\n")
    return Step(name, (str(script), JSON), seconds)


def test_steps_are_kept_and_not_run_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path, PLACE)
    count = "n = pathlib.Path(__file__ + '.n'); n.write_text(n.read_text() + '.' if n.exists() else '.')\n"
    good = written(folder, "good", count + "file.write_text(json.dumps([1]))")
    bad = written(folder, "bad", count + "sys.exit('no GPU')")
    assert run_all(folder, [bad, good]) != []
    assert folder.found(bad) is None
    stored = folder.found(good)
    assert stored is not None and stored["found"] == [1] and stored["machine"] == PLACE["machine"]
    assert stored["date"] and stored["seconds"] >= 0
    assert len(run_all(folder, [bad, good])) == 1
    assert (tmp_path / "good.py.n").read_text() == "." and (tmp_path / "bad.py.n").read_text() == ".."
    other = Step(good.name, (*good.words, "--more"))
    assert folder.found(other) is None, "another command"
    moved = Folder(tmp_path, {**PLACE, "machine": {**PLACE["machine"], "gpus": 8}})
    assert moved.found(good) is None, "another machine"


def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    folder = Folder(tmp_path, PLACE)
    child = "import subprocess\np = subprocess.Popen(['sleep', '600'])\n"
    hangs = written(folder, "hangs", child + "pathlib.Path(__file__ + '.pid').write_text(str(p.pid))\ntime.sleep(600)")
    with pytest.raises(Exception, match="not done within"):
        folder.run(hangs, 5.0)
    assert gone(int((tmp_path / "hangs.py.pid").read_text()), within=60.0)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"machine": asdict(machine()), "versions": versions()}
    monkeypatch.setattr(results, "here", lambda: place)


@pytest.fixture
def pages_stay() -> Iterator[None]:
    """Toys are written to a copy."""
    before = {page: (ROOT / page).read_text() for page in PAGES}
    yield
    assert {page: (ROOT / page).read_text() for page in PAGES} == before


def main(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    results.main()


def test_a_toy_is_measured_and_written_once(
    tmp_path: Path, here: None, pages_stay: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, on ranks that only seem to measure."""
    bench = bench_of(LAPTOP, monkeypatch, tmp_path)
    monkeypatch.setattr(winners, "tune", lambda words: bench.json("grid", *words))

    def process(folder: Folder, step: Step, command: list[str], limit: float) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", command[1:])
            patch.setenv("AUTOTUNE_DB", folder.database)
            assert sys.argv[0] == "bench/winners.py"
            winners.main()
        return ""

    monkeypatch.setattr(Folder, "_process", process)
    main(monkeypatch, "--toy", "--folder", str(tmp_path), "--only", "rs")
    written_once(tmp_path, monkeypatch, capsys, "--only", "rs")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_tables_as_toys(
    tmp_path: Path, here: None, pages_stay: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Ten minutes on two quiet cores.
    done = run_script(str(SCRIPT), "--toy", "--folder", str(tmp_path), seconds=7000)
    assert done.returncode == 0, done.stderr[-3000:]
    for table in TABLES:
        if table.toy:
            page = (tmp_path / "pages" / table.page).read_text()
            assert "say nothing about GPUs" in page.split(f"results: {table.name} -->")[1]
    written_once(tmp_path, monkeypatch, capsys)


def written_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> None:
    """The toys in the folder have been measured, and are not measured again."""
    page = folder / "pages/docs/results.md"
    written = page.read_text()
    inside = written.split("<!-- results: rs -->")[1].split("<!-- end of")[0]
    assert "say nothing about GPUs" in inside and "\n| m=8 | " in inside
    capsys.readouterr()
    main(monkeypatch, "--toy", "--folder", str(folder), *words)
    assert "[1/" not in capsys.readouterr().err, "nothing is measured twice"
    assert page.read_text() == written
