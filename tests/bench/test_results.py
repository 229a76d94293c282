"""make results: its steps resume, its pages have a place for every table, and writing them twice changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import results
import winners
from fakes import LAPTOP, Bench, FakeScreen
from listed import LIST, REPEATED, Sizes, entry, selected
from results import PAGES, Run, possible
from results_table import Setting
from results_tables import TABLES
from results_text import NoMarkers, names_on, replaced
from scripts import run_script
from steps import JSON, LONGEST, Folder, Step, run_all

from autotune.cli import session
from autotune.machine import machine, versions
from autotune.tuning.effort import parse_duration

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench/results.py"
PLACE = {
    "machine": {
        "kind": "cuda", "device": "NVIDIA H200", "arch": "sm_90", "gpus": 4, "compute_units": 132, "shared_memory": 1,
        "l2_bytes": 1, "interconnect": "nvlink", "warp_size": 32,
    },
    "versions": {"triton": "3.6.0", "iris": "", "torch": "2.11.0", "driver": "580"},
}  # fmt: skip


def latency(median: float) -> dict[str, Any]:
    return {"median": median, "low": 0.99 * median, "high": 1.01 * median, "skew": 1.0, "iterations": 15}


def tuned(name: str, number: int, problem: dict[str, Any]) -> dict[str, Any]:
    """A row as ``tune grid`` prints it; the winner takes longer from row to row."""
    ours = 100.0 + number
    baselines = {"bsp eager": 130.0, "bsp graph": 125.0}
    return {
        "sizes": {key: problem[key] for key in ("m", "tokens") if key in problem},
        "problem": {"world_size": 4, **problem},
        "config": {"mode": "push"}, "latency": latency(ours), "trials": 9, "study": 1, "limit_share": 80.0 / ours,
        "baselines": {key: latency(value) for key, value in baselines.items()},
        "speedups": {key: {"value": value / ours, "error": 0.01} for key, value in baselines.items()},
        "limits": {"all_gather": latency(40.0), "gemm": latency(80.0)},
    }  # fmt: skip


def decoded(number: int, problem: dict[str, Any]) -> dict[str, Any]:
    """A point as the sweep of flash decode has it."""
    return {
        "problem": problem, "config": {"mode": "fused"}, "mode": "fused", "winner": 100.0 + number, "spread": 1.0,
        "baselines": {"bsp eager": 120.0}, "over_bsp": 1.2 + number / 100, "over_tuned_bsp": 1.1, "over_fused": 1.0,
        "modes": {"bsp": 110.0, "fused": 100.0}, "over_paper": None, "paper": None, "parts": {"attention": 90.0},
        "trials": 9,
    }  # fmt: skip


def made_up(step: Step) -> Any:
    """Made-up findings of a step; they say nothing about any machine."""
    name, _, part = step.name.partition(".")
    lists = {sizes.name: list(sizes.problems(4)) for sizes in LIST}
    if name == "fd":
        return [decoded(i, each) for i, each in enumerate(lists["fd"]) if each["batch"] == int(part)]
    if name in lists:
        key = next(iter(entry(name).varied))
        wanted = [word for word in step.words if word.startswith(f"--{key}=")][0].removeprefix(f"--{key}=").split(",")
        return [tuned(name, i, each) for i, each in enumerate(lists[name]) if str(each[key]) in wanted]
    if name.startswith("scaling"):
        return [tuned(name, 0, {"m": 4096, "world_size": int(part)})]
    if name == "alone":
        return [tuned(name, i, {"m": m, "world_size": 1}) for i, m in enumerate((16, 64, 256, 4096))]
    if name == "block":
        ways = {"plain eager": 1000.0, "ours eager": 900.0}
        row = {"phase": "decode", "tokens": 1, "us": ways, "speedup": 1.11, "error": 7e-3}
        rows = [row, {**row, "phase": "prefill", "tokens": 512}]
        return (
            {"rows": rows, "layers": 4, "world_size": 4, "device": "NVIDIA H200", "torch": "2"}
            if part == "times"
            else "tuned"
        )
    if name == "outside":
        claim = {"microseconds": 100.0, "ratio": 1.25}
        row = {"table": "rs", "problem": {"m": 512, "world_size": 4}, "regime": "graph", "ours": 101.0, "plain": 126.0,
               "ratio": {"value": 1.248, "error": 0.004}, "claim": claim, "off": -0.0016, "flags": []}  # fmt: skip
        return {"rows": [row]}
    if name == "repeatability":
        row = {"seed": 0, "claimed": 100.0, "true": 101.0, "claimed_speedup": 1.2, "mode": "push", "trials": 9,
               "true_speedup": {"value": 1.19, "error": 0.01}}  # fmt: skip
        return [{"name": part, "problem": {"m": 512}, "seconds": 12, "rows": [row], "spread": 0.004, "aim": 0.02}]
    return "| a |\n|---|\n| 1 |\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Everything done, with made-up results."""
    folder = Folder(tmp_path_factory.mktemp("results"), {})
    run = Run(folder, Setting(4), list(TABLES))
    for step in run.steps:
        stored = {"step": step.name, "words": list(step.words), **PLACE, "date": "2026-01-01", "found": made_up(step)}
        (folder.path / f"{step.name}.json").write_text(json.dumps(stored))
    return run


def copied(root: Path) -> Path:
    for page in PAGES:
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        (root / page).write_text((ROOT / page).read_text())
    return root


def test_every_table_has_its_place_and_every_place_its_table() -> None:
    for page in PAGES:
        assert sorted(names_on(ROOT / page)) == sorted(table.name for table in TABLES if table.page == page)
        for name in names_on(ROOT / page):
            replaced((ROOT / page).read_text(), name, "")  # raises where a marker is missing or there twice


@pytest.fixture(scope="module")
def pages(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the pages, with every table written."""
    pytest.importorskip("matplotlib")
    root = copied(tmp_path_factory.mktemp("pages"))
    assert finished.write(root) == []
    return root


def test_every_table_is_written_and_writing_again_changes_nothing(finished: Run, pages: Path) -> None:
    before = {page: (ROOT / page).read_text() for page in PAGES}
    assert "1.11×" in (pages / "docs/transformer-block.svg").read_text()
    written = {page: (pages / page).read_text() for page in PAGES}
    assert finished.write(pages) == []
    assert {page: (pages / page).read_text() for page in PAGES} == written != before
    results = written["docs/results.md"]
    assert results.count("2026-01-01") == sum(table.page != "README.md" for table in TABLES), "each table says when"
    assert "Not measured yet" not in results
    for table in TABLES:
        inside = written[table.page].split(f"<!-- results: {table.name} -->")[1].split("<!-- end of")[0]
        assert "NVIDIA H200" in inside and ("\n| " in inside or table.name == "picture"), table.name
        command = "\n    python bench/" in inside or "\n    t" in inside
        assert command or table.name in ("picture", "found"), "the command"
    for page in PAGES:  # what stands outside the markers stays
        for name in names_on(ROOT / page):
            before[page], written[page] = (replaced(text, name, "") for text in (before[page], written[page]))
        assert before[page] == written[page]


def test_a_line_for_each_entry_says_what_was_found(pages: Path) -> None:
    page = (pages / "docs/results.md").read_text()
    assert "| `gemm-reduce-scatter`, bf16 | N=8192 K=28672, M = 512, 2048, 8192 | 1.24 | 1.23 | 1.25 |" in page
    assert "| `gemm-all-reduce`, bf16 | N=8192 K=28672, M = 1, 8, 64, …, 8192 | 1.21 | 1.18 | 1.25 |" in page
    assert "| 64 experts of 7168 by 2048, top 8, tokens per rank 1, 16, 128, 1024, 4096 |" in page
    assert "| `flash-decode`, fp16 | 96/12 heads of 128, batch 1, 8, KV per GPU 8K, 64K |" in page


def test_a_table_that_is_not_done_stays(finished: Run, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "results", {})
    for file in finished.folder.path.glob("rs.*.json"):
        (folder.path / file.name).write_text(file.read_text())
    tables = [table for table in TABLES if table.name in ("rs", "ag-k")]
    root = copied(tmp_path)
    left = Run(folder, Setting(4), tables).write(root)
    assert left == ["ag-k: not all measured, left as it is in docs/results.md"]
    assert "m=2048 | 101.0" in (root / "docs/results.md").read_text()
    (root / "docs/results.md").write_text("# Results\n")
    assert "<!-- results: rs --> and <!-- end of rs -->" in Run(folder, Setting(4), tables).write(root)[1]
    with pytest.raises(NoMarkers):
        replaced("<!-- end of rs --> <!-- results: rs --> <!-- results: rs -->", "rs", "")


def test_what_needs_more_gpus_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    names = {setting: {table.name for table in TABLES} - {table.name for table in possible(list(TABLES), setting)}
             for setting in (Setting(2), Setting(4), Setting(8), Setting(2, toy=True))}  # fmt: skip
    assert list(names.values()) == [
        {"ag-rows-8", "time-to-optimum"}, {"ag-rows-8"}, set(), {"ag-rows-8", "time-to-optimum", "compile-survey"},
    ]  # fmt: skip
    assert "ag-rows-8: needs 8 GPUs, these are 4" in capsys.readouterr().err
    assert [table.name for table in possible(list(TABLES), Setting(1))] == ["compile-survey"], "nothing is shared"


def test_no_step_is_longer_than_nine_minutes(finished: Run) -> None:
    assert LONGEST <= 540
    for step in finished.steps:
        assert 0 < step.seconds <= LONGEST, step.name
    assert len({step.name for step in finished.steps}) == len(finished.steps)


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


@pytest.mark.parametrize(("text", "told"), [('{"step": "go', "Unterminated"), ("{}", "it lacks words"), ("3", "int")])
def test_a_damaged_result_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "good.json").write_text(text)
    with pytest.raises(SystemExit, match=told) as ended:
        Folder(tmp_path, PLACE).found(Step("good", ("good.py",)))
    assert "good.json: " in str(ended.value) and "remove it" in str(ended.value)


def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    folder = Folder(tmp_path, PLACE)
    child = "import subprocess\np = subprocess.Popen(['sleep', '600'])\n"
    hangs = written(folder, "hangs", child + "pathlib.Path(__file__ + '.pid').write_text(str(p.pid))\ntime.sleep(600)")
    with pytest.raises(Exception, match="not done within"):
        folder.run(hangs, 5.0)
    assert ended(int((tmp_path / "hangs.py.pid").read_text()))


def ended(pid: int) -> bool:
    """True as soon as the process is gone; a zombie is, for nobody may be left to reap it."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(600):
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_who_ends_the_run_ends_its_step(tmp_path: Path) -> None:
    folder = Folder(tmp_path, PLACE)
    step = written(
        folder, "waits", "import os\npathlib.Path(__file__ + '.pid').write_text(str(os.getpid()))\ntime.sleep(600)"
    )
    program = (
        "import sys; from pathlib import Path; from steps import *\n"
        f"run_all(Folder(Path({str(tmp_path)!r}), {PLACE!r}), [Step('waits', {step.words!r})])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
    runner = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL)
    pid = tmp_path / "waits.py.pid"
    while not (pid.exists() and pid.read_text()):
        assert runner.poll() is None
        time.sleep(0.1)
    runner.terminate()
    assert runner.wait() == 128 + signal.SIGTERM
    assert ended(int(pid.read_text()))


def test_no_step_begins_that_would_end_too_late(tmp_path: Path) -> None:
    folder = Folder(tmp_path, PLACE)
    short = written(folder, "short", "file.write_text('1')", seconds=1.0)
    long = written(folder, "long", "file.write_text('2')", seconds=5000.0)
    undone = run_all(folder, [long, short], time.monotonic() + 4000)
    assert undone == ["long: no time left, it takes up to 5000 s"] and folder.found(short) is not None


def test_the_list_is_selected_from_by_name_and_field() -> None:
    assert [problem["m"] for _, problem in selected(["rs"], 4)] == [512, 2048, 8192]
    assert len(selected(["fd/batch=8"], 4)) == 2
    assert len(selected(None, 4)) == sum(len(sizes.sizes()) for sizes in LIST) == 51
    with pytest.raises(ValueError, match="rs/m=513 chooses nothing"):
        selected(["rs/m=513"], 4)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine, asked for in this process."""
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


@pytest.mark.skipif(not machine().is_interpreter, reason="this machine has GPUs")
def test_without_a_gpu_it_says_what_can_be_done(tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="here is none.*--toy"):
        main(monkeypatch, "--folder", str(tmp_path))
    assert not list(tmp_path.glob("*.json"))


def test_a_toy_is_measured_and_written_once(
    tmp_path: Path, here: None, pages_stay: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, on ranks that only seem to measure."""
    bench = Bench(LAPTOP)
    monkeypatch.setattr(session, "machine", lambda: LAPTOP)
    monkeypatch.setattr(session, "make_gang", bench.make_gang)
    monkeypatch.setattr(session, "make_screen", FakeScreen)
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


@pytest.mark.parametrize("sizes", [*LIST, *REPEATED], ids=lambda sizes: sizes.name)
def test_tune_takes_the_seconds_of_every_table(sizes: Sizes) -> None:
    assert parse_duration(f"{sizes.seconds}s") == sizes.seconds
