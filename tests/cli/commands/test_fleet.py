"""``tune fleet`` over the local engine with fake tunings: the list, status, watch, stop, and its refusals."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import Bench

sys.path.insert(0, str(Path(__file__).parents[2] / "fleet"))
from small_fleet import DONE, FAILED, H200, Tunings, far_lease, host

from autotune.cli.commands import fleet as command
from autotune.cli.options import Request
from autotune.db import Store
from autotune.db.fleet_records import Finding, HostRecord
from autotune.fleet import driver
from autotune.fleet.local import LocalEngine
from autotune.workloads import workload

LIST = """
defaults: {n: 64, k: 64, trials: 2}
problems:
  - {workload: all-gather-gemm, m: 8..32, world_size: 2}
  - {workload: gemm-all-reduce, m: 16, world_size: 4, regime: graph}
"""

Start = Callable[..., Tunings]


@pytest.fixture
def tunings(gpus: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tunings:
    """What the local engine's hosts do; the host is ``HOST``."""
    made = Tunings()

    def engine(name: str, url: str, address: str | None, exclusive: bool) -> LocalEngine:
        return LocalEngine(url, HOST[0], made.start)

    monkeypatch.setattr(command, "make_engine", engine)
    monkeypatch.setattr(driver, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(driver, "LOOK_SECONDS", 0.0)
    (tmp_path / "problems.yaml").write_text(LIST)
    monkeypatch.chdir(tmp_path)
    HOST[:] = [host("gpu-01", 4)]
    return made


HOST: list[HostRecord] = []


def test_a_list_is_tuned_and_the_same_command_has_nothing_left_to_do(gpus: Bench, tunings: Tunings) -> None:
    result = gpus.tune("fleet", "problems.yaml")
    assert result.exit_code == 0, result.output
    assert result.stdout == "4 problems: 4 done\n"
    lines = result.stderr.splitlines()
    assert lines[0] == "examining the hosts"
    assert lines[1].startswith("gpu-01: 4 × NVIDIA H200, nvlink, triton 3.7.1")
    assert lines[2] == "4 problems, 4 of them new"
    assert sum(" gpu-01: done in 0 s: " in line for line in lines) == 4
    assert any(
        "gemm-all-reduce k=64 m=16 n=64" in line and "--regime graph on 4 × NVIDIA H200" in line for line in lines
    )
    assert lines[-1] == "next: tune list"
    assert len(tunings.started) == 4
    again = gpus.tune("fleet", "start", "problems.yaml")
    assert (again.exit_code, again.stdout) == (0, "4 problems: 4 done\n")
    assert len(tunings.started) == 4


def test_failures_are_shown_and_tried_again_on_request(gpus: Bench, tunings: Tunings) -> None:
    tunings.ends = lambda m: FAILED if m == 32 else DONE
    result = gpus.tune("fleet", "problems.yaml")
    assert result.exit_code == 1
    assert "failed once" in result.stdout and "gpu-01: no config could be measured" in result.stdout
    assert "1 left: stopped, or waiting for another host" in result.stderr
    HOST[:] = [host("gpu-02", 4)]
    result = gpus.tune("fleet", "start")
    assert result.exit_code == 1 and "set aside" in result.stdout
    assert "1 set aside; tune fleet --retry" in result.stderr
    tunings.ends = lambda m: DONE
    assert gpus.tune("fleet", "start", "--retry").stdout == "4 problems: 4 done\n"


def test_status_fits_into_80_columns(gpus: Bench, tunings: Tunings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tunings.ends = lambda m: FAILED if m == 8 else DONE
    finding = Finding("clocks", "could be better", "GPU 3 is throttled", "cool it")
    HOST[:] = [HostRecord("gpu-01", 4, H200, (finding,))]
    gpus.tune("fleet", "problems.yaml")
    with Store.open() as store:
        store.fleet.register(host("gpu-02", 2))
        store.fleet.register(host("gpu-03", broken="links: NVLink is down"))
        assert store.fleet.claim("gpu-02", far_lease()) is not None
    result = gpus.tune("fleet", "status")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stdout.startswith("4 problems: 3 done, 1 running; about 0:00 left\n")
    words = " ".join(result.stdout.split())
    for told in ("gpu-02 all-gather-gemm", "4 × NVIDIA H200 fine, 1 could be better", "broken: links: NVLink is down"):
        assert told in words
    values = gpus.json("fleet", "status")
    assert values["counts"]["running"] == 1
    assert values["running"][0]["host"] == "gpu-02" and values["running"][0]["problem"]["m"] == 8
    assert values["hosts"][0]["findings"][0]["mend"] == "cool it"


def test_stop_then_resume(gpus: Bench, tunings: Tunings) -> None:
    with Store.open() as store:
        store.fleet.register(HOST[0])
    tunings.ends = lambda m: FAILED
    gpus.tune("fleet", "problems.yaml")
    result = gpus.tune("fleet", "stop")
    assert (result.exit_code, result.stderr) == (0, "4 stopped, 0 stopping; next: tune fleet resumes\n")
    assert gpus.json("fleet", "status")["counts"]["stopped"] == 4
    HOST[:] = [host("gpu-02", 4)]
    tunings.ends = lambda m: DONE
    assert gpus.tune("fleet", "problems.yaml").stdout == "4 problems: 4 done\n"


def test_watch_waits_for_a_list_and_ends_with_its_status(
    gpus: Bench, tunings: Tunings, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def tuned_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        gpus.tune("fleet", "problems.yaml")

    Store.open().close()
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=tuned_meanwhile, monotonic=time.monotonic))
    watched = gpus.tune("fleet", "watch")
    assert watched.exit_code == 0 and len(waits) == 1
    assert watched.stderr.startswith("waiting for a list in ") and watched.stderr.count(" gpu-01: done in ") == 4
    again = gpus.tune("fleet", "watch")
    assert again.exit_code == 0 and again.stderr == "" and len(waits) == 1
    assert watched.stdout == again.stdout == gpus.tune("fleet", "status").stdout


@pytest.mark.parametrize("word", ["status", "start", "stop"])
def test_without_a_fleet_there_is_nothing_to_show_resume_or_stop(gpus: Bench, tunings: Tunings, word: str) -> None:
    result = gpus.tune("fleet", word, "--db", "none.db")
    assert result.exit_code == 2 and "no database at" in result.stderr and not Path("none.db").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("none.yaml",), "tune: error: none.yaml: No such file or directory"),
        (("/dev/null",), "tune: error: /dev/null: a device; name a file or a pipe"),
        (("problems.yaml", "--engine", "slurm"), "tune: error: engine 'slurm': allowed: local, ray"),
        (("problems.yaml", "--exclusive"), "--address and --exclusive are for --engine ray"),
        (("wide.yaml",), "no host can take these; nothing was started:\nall_gather_gemm m=16 n=64 k=64 world_size=8: "),
    ],
)
def test_bad_input_is_refused_at_once(gpus: Bench, tunings: Tunings, words: tuple[str, ...], told: str) -> None:
    Path("wide.yaml").write_text("problems: [{workload: all-gather-gemm, m: 16, n: 64, k: 64, world_size: 8}]")
    result = gpus.tune("fleet", *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert tunings.started == []
    if words == ("wide.yaml",):
        assert "world_size=8" in result.stderr and "the widest host has 4 GPUs" in result.stderr
        assert gpus.json("fleet", "status")["counts"]["wanted"] == 0


def test_no_host_can_be_used(gpus: Bench, tunings: Tunings) -> None:
    HOST[:] = [host("gpu-01", broken="links: NVLink is down")]
    result = gpus.tune("fleet", "problems.yaml")
    assert result.exit_code == 1
    assert "gpu-01: 8 × NVIDIA H200" in result.stderr and "not used: links: NVLink is down" in result.stderr
    assert "tune: error: no host can be used (gpu-01: links: NVLink is down)" in result.stderr
    found: Any = gpus.json("fleet", "status")["hosts"]
    assert json.dumps(found).count("NVLink is down") == 1


@pytest.mark.parametrize("words", [("start",), ("status",), ("stop",), ("watch",)])
@pytest.mark.parametrize("url", ["postgresql://me:geheim@db/x", "postgresql://me@db/x?password=geheim"])
def test_a_password_on_the_command_line_is_refused_and_not_shown(gpus: Bench, words: tuple[str, ...], url: str) -> None:
    result = gpus.tune("fleet", *words, "--db", url)
    assert result.exit_code == 2
    assert "a password on a command line is seen by every user" in result.stderr and "PGPASSFILE" in result.stderr
    assert "geheim" not in result.output


@pytest.mark.parametrize(
    "url", ["postgresql://me:geheim@127.0.0.1:9/x", "postgresql://me@127.0.0.1:9/x?password=geheim"]
)
def test_no_message_shows_a_password(gpus: Bench, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Of the command line's other commands, where nobody listens, and of the next step that is proposed."""
    monkeypatch.setattr("autotune.db.engines.database.PATIENCE", 0.0)
    result = gpus.tune("list", "--db", url)
    assert result.exit_code == 2
    assert "geheim" not in result.output and "127.0.0.1" in result.output
    assert "geheim" not in Request(workload("all_gather_gemm"), {}).command(db=url)
