"""``tune grid``: every size, one after the other, and what is verified between them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from every_mode import whole
from fakes import EIGHT_GPUS, Bench, FakeGang, FakeScreen, latency_of

from autotune.config import Config
from autotune.db import Store
from autotune.outcome import Evaluation, Outcome
from autotune.runtime.lookup import lookup
from autotune.task import Task
from autotune.workloads import workload

TOY = f"{Path(__file__).parents[1] / 'toy_workload.py'}:ToyWorkload"
GRID = ("grid", TOY, "--trials", "5", "--effort", "quick", "--no-verify")
"""The space has five configs: a search for a sixth takes as long as ten trials."""


def sized(gang: Any, config: Config, seed: int, plan: Any) -> Evaluation:
    """The best block is an eighth of the width: each step away from it costs 10 %."""
    median = 500.0
    if config["mode"] == "push":
        width = gang.problems[-1].width
        median = 100.0 * (1 + 0.1 * abs(math.log2(8 * config.integer("block_m") / width)))
    return Evaluation(Outcome.MEASURED, latency=latency_of(median), error=1e-3)


@pytest.fixture
def bench(laptop: Bench) -> Bench:
    laptop.hook = sized
    return laptop


def test_json_has_the_whole_entries(bench: Bench) -> None:
    rows = bench.json(*GRID, "--width", "128,256,512")
    assert [row["sizes"] for row in rows] == [{"width": 128}, {"width": 256}, {"width": 512}]
    assert [row["config"]["block_m"] for row in rows] == [16, 32, 64]
    assert [row["with_neighbour"] for row in rows] == [None, pytest.approx(1.1), pytest.approx(1.1)], "the one before"


def test_sizes_between_are_verified_with_the_configs_of_both_neighbours(bench: Bench) -> None:
    words = [word for word in GRID if word != "--no-verify"]
    rows = bench.json(*words, "--width", "128..1024")
    assert [row["sizes"]["width"] for row in rows if not row["verified"]] == [128, 512, 1024]
    verified = [row["sizes"]["width"] for row in rows if row["verified"]]
    assert 256 in verified and len(verified) == 4
    assert all(size % 16 for size in verified if size != 256), "no tile divides them"
    with Store.open() as store:
        for entry in store.entries():
            width, beside = entry.key.fields["width"], entry.winner.beside
            blocks = {Config.from_json(each).get("block_m") for each in beside} | {entry.winner.config.get("block_m")}
            searched = {16, 64} if width < 512 else {64, 128}
            assert not entry.winner.verified or blocks >= searched, "the winners of both searched neighbours"
            sources = {trial.source for trial in store.trials(entry.study_id)}
            assert (sources == {"final"}) == (not entry.winner.limits) == entry.winner.verified
    for width, faster in ((200, 16), (300, 64)):
        found = json.loads(bench.tune("lookup", TOY, "--width", str(width), "--json").stdout)
        assert (found["source"], found["config"]["block_m"]) == ("range", faster)
    again = bench.json(*words, "--width", "128..1024")
    assert again == rows and not bench.gangs[-1].started
    bench.tune("run", TOY, "--width", "256", "--trials", "5", "--effort", "quick")
    with Store.open() as store:
        (entry,) = (each for each in store.entries() if each.key.fields["width"] == 256)
    assert not entry.winner.verified, "a search is not answered by what was only verified"


@pytest.mark.parametrize(
    ("name", "words", "along"),
    [
        whole("flash-decode", ("--batch", "2", "--kv-len", "1024..16384"), {"kv_len": range(1024, 16385, 97)}),
        ("moe-dispatch-gemm", ("--tokens", "1..64"), {"tokens": range(1, 65)}),
        ("flash-decode", ("--batch", "1..4", "--kv-len", "1024..4096"), {"batch": (1, 2, 4), "kv_len": (1024, 2900)}),
        whole("gemm-reduce-scatter", ("--m", "1..512", "--n", "1024", "--k", "1024"), {"m": range(8, 513, 8)}),
    ],
)
def test_a_range_over_any_axis_is_searched_at_few_sizes_and_served_whole(
    gpus: Bench, name: str, words: tuple[str, ...], along: dict[str, Any]
) -> None:
    effort = ("--trials", "3", "--effort", "quick", "--world-size", "8")
    rows = gpus.json("grid", name, *words, *effort)
    searched = [row["sizes"] for row in rows if not row["verified"]]
    verified = [row["sizes"] for row in rows if row["verified"]]
    assert 2 <= len(searched) < len(rows) and all(row["config"] for row in rows)
    assert any(size % 2 or size // 8 % 2 for sizes in verified for size in sizes.values()), "off the grid of tiles"
    given = {option: value for option, value in zip(words[::2], words[1::2], strict=True) if ".." not in value}
    problem = {option.lstrip("-").replace("-", "_"): int(value) for option, value in given.items()}
    kind = workload(name.replace("-", "_"))
    default = kind.default_problem(EIGHT_GPUS, 8)
    for sizes in itertools.product(*along.values()):
        asked = dataclasses.replace(default, **problem, **dict(zip(along, sizes, strict=True)))
        found = lookup(kind, asked, machine=EIGHT_GPUS)
        assert found.source in ("exact", "range"), (sizes, found.reason)
    if len(along) == 2:  # off the lines of a grid of two dimensions the nearest is served, and said
        near, far = (
            gpus.json("lookup", "flash-decode", "--batch", batch, "--kv-len", "3001", "--world-size", "8")
            for batch in ("3", "64")
        )
        length = near["entry"]["problem"]["kv_len"]
        assert near["source"] == "nearest" and f"nearest is kv_len={length} batch=" in near["reason"]
        assert far["source"] == "predicted"


def test_what_is_given_holds_for_every_size(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screened = []
    monkeypatch.setattr(FakeScreen, "turn_to", lambda screen, found, problem: screened.append(problem.width))
    live = f"sqlite:///{tmp_path / 'live.db'}"
    words = (*GRID, "--width", "128,256", "--regime", "graph", "--seed", "7", "--optuna-storage", live)
    assert [row["regime"] for row in bench.json(*words)] == ["graph", "graph"]
    assert list(dict.fromkeys(screened)) == [128, 256], "a config is screened for the size that it is tried for"
    with Store.open() as store:
        assert [study.seed for study in store.studies()] == [7, 7]
    assert len(optuna.study.get_all_study_names(live)) == 2
    bench.tune(*words)
    bench.tune(*words, "--force")
    first, cached, again = (gang.started for gang in bench.gangs)
    assert first == again > cached == 0
    assert [gang.closed for gang in bench.gangs] == [1, 1, 1]


def test_a_size_without_a_winner_ends_it_with_exit_code_1(bench: Bench) -> None:
    def failing(gang: Any, *called: Any) -> Evaluation:
        return Evaluation(Outcome.CRASHED, "planted") if gang.problems[-1].width == 128 else sized(gang, *called)

    bench.hook = failing
    result = bench.tune(*GRID, "--width", "128,256")
    assert result.exit_code == 1
    told = [line.split()[:2] for line in result.stdout.splitlines()[1:]]
    assert told == [["width=128", "no"], ["width=256", "100.0"]]


def test_the_ranks_heap_holds_the_largest_size(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 0)
    for sizes in ("2048,4096,1024", "4096"):
        assert gpus.tune("grid", "all-gather-gemm", "--m", sizes).exit_code == 130
    assert gpus.heaps[0] == gpus.heaps[1] > 0


def test_a_config_that_the_next_size_forbids_is_not_lent(gpus: Bench) -> None:
    violations, space = [], workload("all_gather_gemm").space
    gpus.hook = lambda gang, config, seed, plan: violations.append(
        space.violation(config, Task(gang.problems[-1], EIGHT_GPUS))
    )
    words = ("--trials", "8", "--effort", "quick", "--n", "4096", "--k", "4096")
    assert gpus.tune("grid", "all-gather-gemm", "--m", "8192,64", *words).exit_code == 0
    assert violations and not any(violations)


def test_the_ranks_start_before_the_clock_of_the_first_size(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.monotonic

    def slow(gang: FakeGang) -> None:
        gang.start = lambda: monkeypatch.setattr(time, "monotonic", lambda: clock() + 36_000)  # type: ignore[method-assign]

    bench.prepare = slow
    result = bench.tune(*GRID, "--width", "128")
    times = [line[1:] for line in result.stderr.splitlines() if line.startswith("[")]
    assert times and not any(each.startswith("10:") for each in times), "ten hours for the start"


def test_interrupted_it_continues(bench: Bench) -> None:
    bench.prepare = lambda gang: setattr(gang, "interrupt_after", 20)
    first = bench.tune(*GRID, "--width", "128..1024", "--json")
    assert first.exit_code == 130
    done = len(json.loads(first.stdout))
    assert 0 < done < 4
    bench.prepare = lambda gang: None
    assert len(bench.json(*GRID, "--width", "128..1024")) == 4
    assert len(bench.gangs[1].calls) < 4 * 20
