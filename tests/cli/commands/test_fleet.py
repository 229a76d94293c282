"""``tune fleet``: a list tuned with fake ranks, its status, stop, and its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, Bench, FakeGang, begun

from autotune.cli import session
from autotune.cli.commands import fleet as command
from autotune.db import Lease, Store
from autotune.errors import FleetError
from autotune.fleet.problem_list import read_list
from autotune.task import Task

LIST = """
defaults: {n: 64, k: 64, trials: 2}
problems:
  - {workload: all-gather-gemm, m: "16,32,64", world_size: 2}
  - {workload: gemm-all-reduce, m: 16, world_size: 4, regime: graph}
"""


@pytest.fixture
def listed(gpus: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """A host without faults of eight GPUs, in the folder of a list."""
    (tmp_path / "problems.yaml").write_text(LIST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "examine", lambda name, url: None)
    return gpus


def test_a_list_is_tuned_and_the_same_command_has_nothing_left_to_do(listed: Bench) -> None:
    result = listed.tune("fleet", "problems.yaml")
    assert result.exit_code == 0, result.output
    assert result.stdout == "4 problems: 4 done\n"
    assert [gang.ranks for gang in listed.gangs] == [4, 2], "the widest first; ranks stay for problems alike"
    assert [problem.m for problem in listed.gangs[1].problems] == [16, 32, 64]  # type: ignore[attr-defined]
    assert all(gang.closed for gang in listed.gangs)
    again = listed.tune("fleet", "problems.yaml")
    assert (again.exit_code, again.stdout, len(listed.gangs)) == (0, "4 problems: 4 done\n", 2)
    assert [entry["regime"] for entry in listed.json("list", "gemm-all-reduce")] == ["graph"]


def test_what_fails_is_shown_with_its_reason(listed: Bench) -> None:
    def break_first(gang: FakeGang) -> None:
        gang.broken = len(listed.gangs) == 0

    listed.prepare = break_first
    result = listed.tune("fleet", "problems.yaml")
    assert result.exit_code == 1 and result.stdout.startswith("4 problems: 3 done, 1 failed\n")
    [failed] = [row for row in listed.json("fleet", "problems.yaml", "--status") if row["state"] == "failed"]
    assert (failed["workload"], failed["regime"], failed["device"]) == ("gemm_all_reduce", "graph", "NVIDIA H200")
    assert failed["problem"]["m"] == 16 and "no config" in failed["told"]


def take(problem: int) -> Lease:
    asked, lease = read_list(Path("problems.yaml"))[problem], Lease.new()
    with Store.open() as store:
        study = begun(store, asked.workload, Task(asked.problem, EIGHT_GPUS), asked.regime)
        assert store.take_lease(study.id, lease) is None
    return lease


def test_status_and_stop_need_nothing_but_the_database(listed: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "machine", lambda: pytest.fail("no machine is asked for"))
    lease = take(1)
    result = listed.tune("fleet", "problems.yaml", "--status")
    assert result.exit_code == 0 and result.stdout.startswith("4 problems: 1 running, 3 waiting\n")
    line = result.stdout.splitlines()[-1]
    assert line.startswith("running  all-gather-gemm m=32 ") and line.endswith(f"NVIDIA H200  {lease}")
    assert listed.tune("fleet", "problems.yaml", "--stop").exit_code == 0
    assert listed.tune("fleet", "problems.yaml", "--status").stdout.startswith("4 problems: 1 stopped, 3 waiting\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("none.yaml",), "none.yaml"),
        (("problems.yaml", "--engine", "slurm"), "slurm"),
        (("problems.yaml", "--engine", "ray"), "database"),
        (("problems.yaml", "--address", "head:1"), "--address"),
        (("wide.yaml",), "world_size=16"),
        (("other.yaml",), "NVIDIA H200"),
        *((("problems.yaml", word, "--db", "none.db"), "none.db") for word in ("--status", "--stop")),
        (("problems.yaml", "--db", "postgresql://me:geheim@db/x"), "PGPASSFILE"),
        (("problems.yaml", "--db", "postgresql://me@db/x?password=geheim"), "PGPASSFILE"),
    ],
)
def test_bad_input_is_refused_first_and_no_password_is_shown(listed: Bench, words: tuple[str, ...], told: str) -> None:
    entry = "workload: all-gather-gemm, m: 16, n: 64, k: 64, world_size: "
    Path("wide.yaml").write_text(f"problems: [{{{entry} 2}}, {{{entry} 16}}]")
    Path("other.yaml").write_text(f"problems: [{{{entry} 2, device: NVIDIA H100}}]")
    result = listed.tune("fleet", *words)
    assert result.exit_code == 2 and told in result.stderr and "geheim" not in result.output
    assert not listed.gangs and not [*Path().glob("*.db")]


def test_a_host_with_something_broken_tunes_nothing(listed: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"check": "links", "verdict": "broken", "found": "NVLink is down"}, {"check": "torch", "verdict": "fine"}]
    doctor = f"print({json.dumps(json.dumps({'findings': found}))})"
    monkeypatch.undo()
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda _, **given: run([sys.executable, "-S", "-c", doctor], **given))
    with pytest.raises(FleetError, match="NVLink is down"):
        command.examine("gpu-01", "x.db")
    doctor = "raise SystemExit('no torch')"
    with pytest.raises(FleetError):
        command.examine("gpu-01", "x.db")
