from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from fakes import Bench
from typer.testing import CliRunner

from autotune.cli import app
from autotune.db import Store
from autotune.machine import machine
from autotune.runtime.lookup import forget_lookups
from autotune.timeline import CALL, COLLECTIVE, COPY, GEMM, from_json


@pytest.mark.skipif(not machine().is_interpreter, reason="the problem is one for interpreted ranks")
def test_the_real_thing_into_the_cache_and_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "a cache.db"))
    monkeypatch.setenv("AUTOTUNE_TRACE", "1")
    small = ("all-gather-gemm", "--m", "32", "--n", "64", "--k", "64")
    done = CliRunner().invoke(app.build(), [*small, "--trials", "2", "--effort", "quick", "--json"])
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["device"] == "cpu-interpreter" and values["finished"]
    assert values["outcomes"]["measured"] >= 1
    forget_lookups()
    found = CliRunner().invoke(app.build(), ["lookup", *small, "--json"])
    assert json.loads(found.stdout)["source"] == "exact"
    assert json.loads(found.stdout)["config"] == values["config"]
    with Store.open(create=False) as store:
        timeline = from_json(store.attached(1, "timeline") or "")
    assert list(timeline)[0] == "bsp eager" and len(timeline) == 2, "the library's calls and the winner's"
    for traced in timeline.values():
        assert traced.slowdown > 0 and len(traced.ranks) == 2 and all(traced.ranks)
        assert all(0 <= event.begin <= event.end < 60e6 for rank in traced.ranks for event in rank)
    for rank in timeline["bsp eager"].ranks:
        [gathered] = [event for event in rank if event.kind == COLLECTIVE]
        [multiplied] = [event for event in rank if event.kind == GEMM]
        assert gathered.end <= multiplied.begin and {event.kind for event in rank} <= {COLLECTIVE, GEMM, COPY, CALL}


def test_what_is_done_can_be_told_and_logged(gpus: Bench, tmp_path: Path) -> None:
    file = tmp_path / "tune.log"
    words = ("all-gather-gemm", "--trials", "8", "--effort", "quick")
    quiet = gpus.tune(*words, "--log-file", str(file))
    assert quiet.exit_code == 0 and "trial 0" not in quiet.stderr
    told = gpus.tune("-v", *words, "--force")
    again = gpus.tune(*words, "--force", "--verbose")
    for stderr in (told.stderr, again.stderr):
        assert re.search(r"^tune: trial 0 \(baseline\): [\d.]+ µs, ", stderr, re.M) and "finals, study" in stderr
    lines = file.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ INFO ", line) for line in lines)
    assert sum("trial" in line for line in lines) >= 8
    assert not logging.getLogger("autotune").isEnabledFor(logging.INFO), "as before"
    assert gpus.tune("--log-file", str(tmp_path), "list").exit_code == 2, "a folder"
