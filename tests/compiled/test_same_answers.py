"""Whoever asks which config serves a size gets one answer: look-up, operators, pass, crossover page, thresholds."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import LAPTOP, Bench, bench_of, latency_of
from test_candidates import gather
from test_decisions import Opened, groups  # noqa: F401
from test_patterns import graph_of

import autotune
from autotune.compiled.decisions import Table, Verdict
from autotune.compiled.patterns import candidates
from autotune.config import Config
from autotune.db import Store
from autotune.outcome import Evaluation, Outcome, Regime
from autotune.report.views import crossover
from autotune.results.study import finished
from autotune.runtime.entries import Entries, read_entries
from autotune.settings import default_database_url
from autotune.workloads import workload

K, N, RANKS = 64, 32, 2
FOUND = workload("all_gather_gemm")
DRAWN, BY_THE_PASS = 200, 20


def any_times(gang: Any, config: Config, seed: int, plan: Any) -> Evaluation:
    """Times by chance, of a config the same at neighbouring sizes: many modes win somewhere."""
    m = gang.problems[-1].m
    drawn = zlib.crc32(f"{config.to_json()} {m.bit_length() // 3}".encode()) % 1000
    return Evaluation(Outcome.MEASURED, latency=latency_of(100.0 + drawn * (1 + m % 7) / 7), error=1e-3)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """A grid from 64 to 2048 rows, its sizes between verified."""
    bench = bench_of(LAPTOP, monkeypatch, tmp_path)
    bench.hook = any_times
    sizes = ("--m", "64..2048", "--n", str(RANKS * N), "--k", str(K), "--dtype", "fp32", "--world-size", str(RANKS))
    assert bench.tune("grid", "all-gather-gemm", *sizes, "--trials", "12", "--effort", "quick").exit_code == 0
    return bench


def of_ranges(ranges: list[tuple[int, int, str, str]], problems: list[autotune.AllGatherGemm]) -> list[tuple[str, str]]:
    """The one range that each size is in."""
    answers = []
    for each in problems:
        (answer,) = [(source, mode) for first, last, source, mode in ranges if first <= each.m <= last]
        answers.append(answer)
    return answers


class OfADatabase(Opened):
    def tuned(self, name: str) -> Entries:
        return read_entries(default_database_url(), name, self.machine.device)


def by_the_pass(problem: autotune.AllGatherGemm) -> Verdict:
    graph = graph_of(lambda x, b: gather(x) @ b, torch.ones(problem.m // RANKS, K), torch.ones(K, N), decomposed=False)
    ((_, (found, *_)),) = candidates(graph)
    assert not isinstance(found, str), found
    (verdict,) = Table(OfADatabase(regime=Regime.PIPELINED)).verdicts(found)  # type: ignore[arg-type]
    return verdict


def test_every_door_gives_the_same_answer_at_sizes_that_nobody_measured(alone: None, bench: Bench) -> None:
    rng = random.Random(46)
    drawn = [RANKS * rng.randrange(16, 2049) for _ in range(DRAWN)]
    problems = [autotune.AllGatherGemm(m=m, n=RANKS * N, k=K, dtype="fp32", world_size=RANKS) for m in drawn]
    answers = [autotune.lookup(FOUND, each) for each in problems]
    modes = [str(each.config["mode"]) for each in answers]
    assert {each.source for each in answers} >= {"range", "nearest"} and len({*modes}) > 1
    entries = {each.study_id: each for each in read_entries(default_database_url(), FOUND.name, LAPTOP.device)}
    won = [str(entries[each.entry.study_id].winner.config["mode"]) for each in answers if each.entry is not None]
    replaced = [mode != other for mode, other in zip(modes, won, strict=True)]
    assert replaced == ["times the work needed" in each.reason for each in answers], "and nothing else is replaced"
    served = [
        ("range" if each.source == "exact" else each.source, mode) for each, mode in zip(answers, won, strict=True)
    ]

    (told,) = json.loads(bench.tune("export", "all-gather-gemm", "--format", "thresholds").stdout)["maps"]
    exported = [(each["from"], each["to"], each["source"], each["mode"]) for each in told["ranges"]]
    assert of_ranges(exported, problems) == served
    for each, problem in zip(answers, problems, strict=True):
        (where,) = [one for one in told["ranges"] if one["from"] <= problem.m <= one["to"]]
        assert each.entry is not None and each.entry.key.fields["m"] in where["measured_at"]
    with Store.open() as store:
        (page,) = crossover.views([finished(store, each, FOUND) for each in store.entries()])
    rows = page.tables[1].rows
    assert of_ranges([(int(row[0]), int(row[1]), row[3], row[2]) for row in rows], problems) == served

    for problem, answer in list(zip(problems, answers, strict=True))[:8]:
        fields = problem.as_dict()
        sizes = [f"--{name.replace('_', '-')}={fields[name]}" for name in ("m", "n", "k", "dtype", "world_size")]
        found = bench.json("lookup", "all-gather-gemm", *sizes)
        assert (found["source"], found["config"]) == (answer.source, dict(answer.config))
    with autotune.Context(1 << 24) as context:
        assert [context.choose(each) for each in problems] == answers
    for problem, answer in list(zip(problems, answers, strict=True))[:BY_THE_PASS]:
        verdict = by_the_pass(problem)
        assert verdict.entry is not None and verdict.entry.winner.config == answer.config
        assert answer.reason in verdict.reason, "what explain shows"
