"""``tune model`` of a list of problems: its entries' options count, and nothing that is said is ignored."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import Bench, FakeGang, latency_of
from model_configs import each_takes, written

from autotune import tuning
from autotune.config import Config
from autotune.db import Store
from autotune.fleet.problem_list import parse_list
from autotune.outcome import Evaluation, Outcome
from autotune.problem import Problem
from autotune.task import Task
from autotune.tuning import Budget, Result
from autotune.workloads import Workload


def test_a_lists_own_trials_effort_and_seed_are_kept(laptop: Bench, tmp_path: Path) -> None:
    entry = "{workload: gemm-all-reduce, m: %s, n: 64, k: 64, world_size: 2, %s}"
    file = written(tmp_path, entry % (4, "trials: 3, seed: 5"), entry % (8, "trials: 4, effort: full"))

    def searches(*words: str) -> dict[int, tuple[int, int, int]]:
        """By M: trials beside the baseline, seed, and iterations of a config."""
        plans: dict[int, int] = {}

        def noting(gang: FakeGang, config: Config, seed: int, plan: Any) -> None:
            plans.setdefault(gang.problems[-1].as_dict()["m"], plan.iterations)

        laptop.hook = noting
        assert laptop.tune("model", file, "--force", *words).exit_code == 0
        with Store.open() as store:
            newest = {each.key.fields["m"]: each for each in store.studies()}
            tried = {
                m: {each.config for each in store.trials(study.id) if each.source not in ("baseline", "final")}
                for m, study in newest.items()
            }
        return {m: (len(tried[m]), study.seed, plans[m]) for m, study in newest.items()}

    assert searches() == {4: (2, 5, 9), 8: (3, 0, 25)}
    assert searches("--trials", "2", "--effort", "standard", "--seed", "7") == {4: (1, 7, 15), 8: (1, 7, 15)}
    assert {seed for _, seed, _ in searches("--seed", "0").values()} == {0}


ENTRY = "{workload: gemm-all-reduce, m: %s, n: 4096, k: 4096, world_size: 2, calls: %s}"
QUICK = ("--trials", "3", "--effort", "quick")


def test_what_fails_is_named_and_counts_as_its_roofline(gpus: Bench, tmp_path: Path) -> None:
    def failing(gang: FakeGang, config: Config, seed: int, plan: Any) -> None:
        gang.broken = gang.problems[-1].as_dict()["m"] == 16 or config["mode"] == "bsp"

    gpus.hook = failing
    result = gpus.tune("model", written(tmp_path, ENTRY % (16, 2), ENTRY % (32, 1)), "--trials", "8", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [each["problem"]["m"] for each in found["failed"]] == [16] and found["not_searched"] == []
    (forward,) = found["forwards"]
    failed, tuned = forward["calls"]
    assert failed["before"] is None and failed["entry"] is None
    told = forward["predicted"]
    assert told["before"] == told["after"] and tuned["before"] == tuned["after"], "no time of the library's"
    assert told["before"] > tuned["before"]["device"] + 1


def test_the_host_stands_beside_the_host_and_the_device_beside_the_device(gpus: Bench, tmp_path: Path) -> None:
    gpus.prepare = lambda gang: setattr(gang, "host", lambda config: 4227.0 if config["mode"] == "bsp" else 22.0)
    file = written(tmp_path, ENTRY % (16, 2), ENTRY % (32, 1))
    result = gpus.tune("model", file, "--trials", "9", "--effort", "quick")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("4.227 ms → 22.00 µs") == 2, "the host's of each"
    (line,) = [line for line in result.stdout.splitlines() if "predicted" in line]
    assert "eager 7.04 times" in line and "instead of 12.68; in a CUDA graph 0.89 times" in line
    (forward,) = gpus.json("model", file)["forwards"]
    device = sum(each["calls"] * each["after"]["device"] for each in forward["calls"])
    assert forward["predicted"]["after"] == forward["in_graph"]["after"] == pytest.approx(device)


def test_what_gains_most_is_first_on_a_heap_for_all(
    gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    tune, seconds = tuning.tune, dict[int, float]()
    needed: list[int] = []

    def noting(found: Workload, task: Task[Problem], *rest: Any, budget: Budget, **named: Any) -> Result:
        seconds[task.problem.as_dict()["m"]] = budget.seconds
        needed.append(found.heap_bytes(task.problem))
        return tune(found, task, *rest, budget=budget, **named)

    monkeypatch.setattr(tuning, "tune", noting)
    clock = SimpleNamespace(monotonic=lambda: sum(seconds.values()))  # each takes all that it may
    monkeypatch.setattr("autotune.cli.commands.model_job.time", clock)
    file = written(tmp_path, ENTRY % (256, 1), ENTRY % (8192, 1), ENTRY % (4096, 1))
    assert gpus.tune("model", file, *QUICK, "--budget", "10m").exit_code == 0
    assert list(seconds) == [8192, 4096, 256] and sum(seconds.values()) == pytest.approx(600, abs=2)
    assert seconds[8192] > 1.5 * seconds[256] and gpus.heaps == [max(needed)]
    seconds.clear()
    assert gpus.tune("model", file, *QUICK, "--force").exit_code == 0
    assert list(seconds) == [8192, 4096, 256], "without a budget for all, too"


SMALL = "workload: gemm-all-reduce, m: 4, n: 64, k: 64, world_size: 2"


@pytest.mark.parametrize(
    ("entry", "words", "told"),
    [
        (SMALL, ("--tp", "4"), "--tp"), (SMALL, ("--zipf", "1.5"), "--zipf"),
        (SMALL, ("--experts-by-width",), "--experts-by-width"),
        (f"{SMALL}, seed: 3, device: X", ("--list",), "device, seed"),  # a list made of it would lose them
        (f"{SMALL}, calls: 0", ("--predict", "--device", "H100"), "calls: 0"),
    ],
)  # fmt: skip
def test_what_a_list_does_not_take(
    laptop: Bench, tmp_path: Path, entry: str, words: tuple[str, ...], told: str
) -> None:
    result = laptop.tune("model", written(tmp_path, f"{{{entry}}}"), *words)
    assert result.exit_code == 2 and told in result.stderr and not laptop.gangs


OPERATORS = ("gemm-all-reduce", "gemm-all-reduce-norm", "all-reduce-norm")


def a_place(folder: Path, *others: str) -> str:
    sizes = "m: 16, n: 4096, world_size: 2, calls: 3, place: mlp"
    ways = (f"{{workload: {each}, {sizes}{', k: 4096' * ('gemm' in each)}}}" for each in OPERATORS)
    return written(folder, *others, *ways)


def saving(gang: FakeGang, config: Config, seed: int, plan: Any) -> Evaluation:
    """The more an operator does, the longer the library takes and the more ours saves."""
    library, saved = {"gemm_all_reduce": (40, 4), "gemm_all_reduce_norm": (46, 9), "all_reduce_norm": (26, 5)}[
        gang.problems[-1].workload
    ]
    latency = latency_of(float(library if config["mode"] in ("bsp", "library_collective") else library - saved))
    return Evaluation(Outcome.MEASURED, latency=latency, error=1e-3, seconds={"total": 1.0})


def test_of_alternatives_the_best_alone_is_searched_and_counted(gpus: Bench, tmp_path: Path) -> None:
    gpus.hook = saving
    file = a_place(tmp_path)
    result = gpus.tune("model", file, *QUICK)
    assert result.exit_code == 0, result.output
    assert "3 alternatives" in result.stderr and result.stdout.count("alternative\n") == 2
    with Store.open() as store:
        verified = {entry.key.workload: entry.winner.verified for entry in store.entries()}
    assert verified == {"gemm_all_reduce": True, "gemm_all_reduce_norm": False, "all_reduce_norm": True}
    found = gpus.json("model", file, *QUICK)
    assert len(gpus.gangs) == 1, "what was ruled out is not looked at again"
    (forward,) = found["forwards"]
    assert {call["workload"]: call["taken"] for call in forward["calls"]} == {
        name: not verified for name, verified in verified.items()
    }
    told, rest = forward["predicted"], forward["predicted"]["without_communication"]
    assert (told["before"] - rest, told["after"] - rest) == pytest.approx((3 * 46, 3 * 37))
    assert found["not_searched"] == []


def test_what_is_called_alone_is_searched_beside_its_alternatives(gpus: Bench, tmp_path: Path) -> None:
    gpus.hook = saving
    file = a_place(tmp_path, "{workload: gemm-all-reduce, m: 16, n: 4096, k: 4096, world_size: 2}")
    assert gpus.tune("model", file, *QUICK).exit_code == 0
    with Store.open() as store:
        assert {entry.key.workload for entry in store.entries() if not entry.winner.verified} == {
            "gemm_all_reduce", "gemm_all_reduce_norm",
        }  # fmt: skip


@pytest.mark.parametrize("after", [1, 12])
def test_interrupted_among_alternatives_it_continues(gpus: Bench, tmp_path: Path, after: int) -> None:
    gpus.hook = saving
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", after)
    assert gpus.tune("model", a_place(tmp_path), *QUICK).exit_code == 130
    gpus.prepare = lambda gang: None
    assert gpus.tune("model", a_place(tmp_path), *QUICK).exit_code == 0
    assert gpus.tune("model", a_place(tmp_path), *QUICK).exit_code == 0 and len(gpus.gangs) == 2


def test_a_short_budget_is_not_for_alternatives(gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each_takes(4, monkeypatch)
    gpus.hook = saving
    file = a_place(tmp_path)
    found = gpus.json("model", file, "--effort", "quick", "--budget", "14s", "--trials", "3")
    with Store.open() as store:
        verified = [entry.winner.verified for entry in store.entries()]
    assert sorted(verified) == [False, True, True] and found["not_searched"] == []
    assert all(call["entry"] is not None for call in found["forwards"][0]["calls"]), "the last one in the end"


def test_alternatives_that_fail_are_named_and_the_others_count(gpus: Bench, tmp_path: Path) -> None:
    def failing(gang: FakeGang, config: Config, seed: int, plan: Any) -> Evaluation:
        if gang.problems[-1].workload == "gemm_all_reduce_norm":
            return Evaluation(Outcome.CRASHED, "rank 1 died in phase compile: SIGSEGV")
        return saving(gang, config, seed, plan)

    gpus.hook = failing
    result = gpus.tune("model", a_place(tmp_path), *QUICK, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [each["workload"] for each in found["failed"]] == ["gemm_all_reduce_norm"]
    taken = [call["workload"] for call in found["forwards"][0]["calls"] if call["taken"]]
    assert taken == ["all_reduce_norm"], "5 of 26 µs; and the GEMM is done in any case"
    told = found["forwards"][0]["predicted"]
    assert told["before"] - told["after"] == pytest.approx(3 * 5)


@pytest.mark.parametrize("places", [False, True])
def test_a_list_made_from_a_list_is_the_same_list(gpus: Bench, tmp_path: Path, places: bool) -> None:
    ranges = "{workload: gemm-all-reduce, m: 1..64, n: 64, k: 64, world_size: 2}"
    file = a_place(tmp_path) if places else written(tmp_path, ranges)
    made = gpus.tune("model", file, "--list", *(["--budget", "1m"] if places else []))
    assert made.exit_code == 0, made.output
    before, after = (
        {(each.problem, each.place, each.way, each.calls, places or each.search) for each in parse_list(text)}
        for text in (Path(file).read_text(), made.stdout)
    )
    assert before == after
