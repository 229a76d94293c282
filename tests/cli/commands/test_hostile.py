"""Names that would act on a terminal or in Markdown: shown as text by every command that shows what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, Bench, evaluation_of, latency_of
from markdown_it import MarkdownIt

from autotune.config import Config
from autotune.db import CacheKey, Store, TrialRecord, Winner
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
