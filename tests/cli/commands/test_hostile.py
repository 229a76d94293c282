"""Names that would act on a terminal or in Markdown: shown as text by every command that shows what is stored."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, Bench, begun, evaluation_of, latency_of
from markdown_it import MarkdownIt

from autotune.config import Config
from autotune.db import CacheKey, Lease, Store, TrialRecord, Winner
from autotune.machine import Machine
from autotune.outcome import Evaluation, Outcome
from autotune.task import Task
from autotune.text import HIDDEN
from autotune.workloads import provenance_of, workload

TITLE = "\x1b]0;owned\x07"
EVIL = f"{TITLE}\n# <script>alert(1)</script> `x` [y](z) a|b \u202e"
FOUND = workload("all_gather_gemm")
PROBLEM = {"m": 4096, "n": 28672, "k": 8192, "world_size": 8}
MARKUP = ("html_inline", "html_block", "link_open", "image")


@pytest.fixture
def hostile(gpus: Bench, tmp_path: Path) -> Bench:
    """A database that somebody else wrote: a sound entry whose names act, and one of another workload and machine."""
    problem = FOUND.problem_type.from_dict(PROBLEM)
    config = FOUND.default_config(Task(problem, EIGHT_GPUS))
    latency = latency_of(400.0, 8)
    elsewhere = CacheKey(f"theirs{EVIL}", json.dumps({"m": EVIL}, separators=(",", ":")), 8, EVIL, EVIL, EVIL)
    with Store.open() as store:
        for key in (elsewhere, CacheKey.of(Task(problem, EIGHT_GPUS))):
            study = store.study(key, provenance_of(FOUND), seed=0, space_size=1000)
            store.record(study.id, TrialRecord(config, evaluation_of(config, 8), source=EVIL))
            store.record(study.id, TrialRecord(Config({"mode": EVIL}), Evaluation(Outcome.CRASHED, EVIL)))
            named = {f"bsp {EVIL}": latency_of(530.0, 8)}
            won = Config({"mode": EVIL}) if key is elsewhere else config
            store.finish(study.id, Winner(won, latency, named, named))
    return gpus


COMMANDS = (
    ["list"], ["list", "--json"], ["show", "all-gather-gemm"], ["show", "all-gather-gemm", "--m", "64"],
    ["show", "all-gather-gemm", "--json"], ["lookup", "all-gather-gemm", "--json"], ["report"], ["all-gather-gemm"],
    ["report", "--format", "json"], ["export"], ["export", "--format", "thresholds"], ["all-gather-gemm", "--json"],
    ["export", "all-gather-gemm", "--format", "thresholds"], ["lookup", "all-gather-gemm", "--m", "3072"],
    ["list", "--db", f"no{TITLE}where"], ["list", TITLE], ["show", f"{TITLE}.py:X"],
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nothing_acts_on_the_terminal(hostile: Bench, words: list[str]) -> None:
    result = hostile.tune(*words)
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit), result.exception
    for text in (result.stdout, result.stderr):
        assert not HIDDEN.search(text.replace("\n", "").replace("\t", ""))
        assert "\n#" not in text.replace("\n# ", "", 2) or words == ["report"]
    if "--json" in words or words[-1] in ("json", "thresholds"):
        assert not result.stdout or json.loads(result.stdout)


def test_a_report_has_no_markup_but_its_own(hostile: Bench) -> None:
    text = hostile.tune("report").stdout
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inner = [child for token in tokens for child in token.children or []]
    assert not {token.type for token in (*tokens, *inner)} & set(MARKUP)
    assert sum(token.type == "heading_open" and token.tag == "h1" for token in tokens) == 3, "both, and each"
    assert "script" in text and r"\x1b" in text, "it is shown"


@pytest.mark.parametrize("place", ["device", "config", "baselines"])
def test_a_bad_file_does_no_harm_and_stores_nothing(gpus: Bench, tmp_path: Path, place: str) -> None:
    strange = Machine("cuda", "NVIDIA X1", "sm_170", 8, 200, 300 * 1024, 50 << 20, "nvlink")
    problem = FOUND.problem_type.from_dict(PROBLEM)
    with Store.open() as store:
        study = begun(store, FOUND, Task(problem, strange))
        winner = FOUND.default_config(Task(problem, EIGHT_GPUS))
        store.finish(study.id, Winner(winner, latency_of(400.0, 8), {"bsp": latency_of(530.0, 8)}))
    values = json.loads(gpus.tune("export").stdout)
    [entry] = values["entries"]
    if place == "device":
        entry["device"] += TITLE
    elif place == "config":
        entry["config"]["mode"] = f"push{TITLE}"
    else:
        entry["baselines"][TITLE] = entry["baselines"]["bsp"]
    file = tmp_path / "configs.json"
    file.write_text(json.dumps(values))
    result = gpus.tune("import", str(file), "--db", str(there := tmp_path / "there.db"))
    assert result.exit_code == 2 and r"\x1b" in result.stderr and not there.exists()
    assert not HIDDEN.search(result.output.replace("\n", ""))


def test_who_is_waited_for_cannot_act_either(hostile: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.tuning import claim

    with Store.open() as store:
        store.forget(2)
        study = store.study(store.studies()[1].key, provenance_of(FOUND), seed=0, space_size=1)
        store.take_lease(study.id, Lease.new())
    with closing(sqlite3.connect(tmp_path / "cache.db")) as connection:
        connection.execute(
            'UPDATE tuning_studies SET lease = replace(lease, \'"host": "\', ?)', (f'"host": "{TITLE[1:-1]}\\u001b',)
        )
        connection.commit()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(claim.time, "sleep", interrupt)
    result = hostile.tune("all-gather-gemm")
    assert result.exit_code == 130 and r"\x1b" in result.stderr and not HIDDEN.search(result.stderr.replace("\n", ""))


def test_a_damaged_row_is_named_on_stderr(hostile: Bench, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "cache.db")) as connection:
        connection.execute("UPDATE tuning_studies SET winner_latency = ? WHERE id = 2", (TITLE,))
        connection.commit()
    for words in (["list"], ["lookup", "all-gather-gemm"], ["report"]):
        result = hostile.tune(*words)
        assert result.exit_code == 0 and not HIDDEN.search(result.output.replace("\n", "").replace("\t", ""))
        told = result.stderr.count("tune: warning: database ")
        assert told == (words == ["list"]), "once"
