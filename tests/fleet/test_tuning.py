"""The tuning process: which words it gets, and what its ends mean; a script stands in for ``tune``."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import autotune
from autotune.db import CacheKey
from autotune.db.fleet_records import Wanted
from autotune.errors import AutotuneError, UnknownWorkload
from autotune.fleet import tuning
from autotune.fleet.tuning import ChildTuning, End, command_of
from autotune.machine import INTERPRETED
from autotune.outcome import Regime
from autotune.workloads import provenance_of, workload

WORKLOAD = workload("all_gather_gemm")
PROBLEM = autotune.AllGatherGemm(m=16, n=64, k=64, world_size=2, bias=True)
WANTED = Wanted(
    CacheKey.of(PROBLEM, INTERPRETED, Regime.GRAPH), provenance_of(WORKLOAD), {"budget": "90s", "seed": 3}
)  # fmt: skip
PROVENANCE = dataclasses.asdict(WANTED.provenance)
MACHINE = {name: getattr(WANTED.key, name) for name in ("device", "arch", "interconnect")}

Run = Callable[[str], ChildTuning]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Starts a script in place of ``tune``."""

    def start(script: str) -> ChildTuning:
        def start_script(module: str, *words: str, environment: Any, **streams: Any) -> subprocess.Popen[str]:
            assert module == "autotune.cli" and words[-1] == "--json"
            command = [sys.executable, "-S", "-c", f"import json, os, sys, time\n{script}"]
            return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **streams)

        monkeypatch.setattr(tuning, "start_bound", start_script)
        return ChildTuning(WANTED, "sqlite:///there.db")

    return start


def end_of(child: ChildTuning) -> End:
    found = child.wait(600)
    assert found is not None
    return found


def test_it_gets_the_words_of_the_command_line() -> None:
    name, *words = command_of(WANTED)
    assert name == "all-gather-gemm"
    assert " ".join(words).endswith("--regime graph --budget 90s --seed 3")
    assert {"--bias", "--no-in-place"} < set(words)
    values = {
        "--dtype": "bf16", "--world-size": "2", "--m": "16", "--n": "64", "--k": "64", "--layout": "rows",
        "--b-order": "kn", "--regime": "graph", "--budget": "90s", "--seed": "3",
    }  # fmt: skip
    assert {name: words[words.index(name) + 1] for name in values} == values


def test_a_name_from_the_database_loads_no_file() -> None:
    key = dataclasses.replace(WANTED.key, workload="/tmp/evil.py:Evil")
    with pytest.raises(UnknownWorkload, match="stored names load no files"):
        command_of(dataclasses.replace(WANTED, key=key))


def test_other_kernels_than_those_of_the_list_are_not_tuned() -> None:
    other = dataclasses.replace(WANTED, provenance=dataclasses.replace(WANTED.provenance, source_hash="0" * 16))
    with pytest.raises(AutotuneError, match="another version of all-gather-gemm"):
        command_of(other)


def test_done(run: Run) -> None:
    script = "assert os.environ['AUTOTUNE_DB'] == 'sqlite:///there.db'; print('[0:01] searching', file=sys.stderr)"
    child = run(f"{script}; print({json.dumps(json.dumps({**MACHINE, 'provenance': PROVENANCE}))})")
    assert end_of(child) == End("done")
    assert child.progress == "[0:01] searching"


@pytest.mark.parametrize(
    ("script", "end"),
    [
        (
            "print('tune: error: no config could be measured', file=sys.stderr); sys.exit(1)",
            End("failed", "no config could be measured"),
        ),
        ("sys.exit(1)", End("failed", "exit code 1")),
        (
            "print('tune: error: database x is locked', file=sys.stderr); sys.exit(2)",
            End("lost", "database x is locked"),
        ),
        ("os.kill(os.getpid(), 9)", End("lost", "the tuning process died of SIGKILL")),
        ("sys.exit(143)", End("stopped", "interrupted; its measurements are kept")),
        (
            f"print(json.dumps({ {'provenance': {**PROVENANCE, 'triton': '9.9'}} }))",
            End("failed", "this host runs another version (triton 9.9); install the same everywhere"),
        ),
        (
            f"print(json.dumps({ {**MACHINE, 'interconnect': 'pcie', 'provenance': PROVENANCE} }))",
            End(
                "failed",
                "the GPUs that it was given are another machine than the whole host (interconnect pcie, wanted "
                "shared-memory); run a fleet command for each group of GPUs that are linked alike, with "
                "CUDA_VISIBLE_DEVICES",
            ),
        ),
    ],
)  # fmt: skip
def test_ends(run: Run, script: str, end: End) -> None:
    assert end_of(run(script)) == end


def test_stop_lets_it_keep_its_measurements(run: Run) -> None:
    child = run("print('ready', file=sys.stderr, flush=True)\ntime.sleep(1000)")
    while child.progress != "ready":
        assert child.wait(0.01) is None
    child.stop()
    child.stop()
    assert end_of(child) == End("stopped", "interrupted; its measurements are kept")


def test_one_that_does_not_stop_is_killed_with_its_children(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "PATIENCE", 0.1)
    script = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
print(child.pid, file=sys.stderr, flush=True)
time.sleep(1000)
"""
    child = run(script)
    while not child.progress:
        assert child.wait(0.01) is None
    grandchild = int(child.progress)
    child.stop()
    assert end_of(child).state == "stopped"
    while True:
        try:
            os.kill(grandchild, 0)
        except ProcessLookupError:
            break
        with open(f"/proc/{grandchild}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                break
