"""Ranks choose together: one config on all, the slowest counts, the same error on all, and nobody is left waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
from ranks_of_functions import run_ranks
from small_kernels import SIZES, Clock, copy, grid, tensors

import autotune
from autotune.db import Store

Answers = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("agreement")
    return run_ranks(__file__, "agreement", 2, folder, argument=str(folder))


def same(ranks: Answers, name: str) -> dict[str, Any]:
    """Both ranks' answer, which is one."""
    one, other = (rank[name] for rank in ranks)
    assert one == other
    return one


WARM = {"source": "exact", "block": 128, "timings": [3], "right": True}


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ("slowest counts", {"source": "tuned", "block": 128, "timings": [4, 5, 3], "right": True}),
        ("a bare number counts", {"block": 128, "timings": [4, 5, 3]}),
        ("kept", {"studies": 1, "world": 2}), ("all warm", WARM), ("rank 0 cold", WARM), ("rank 1 cold", WARM),
        ("near on rank 0, exact on rank 1", {"source": "exact", "block": 64, "right": True}),
        ("neighbour on rank 1", {"source": "nearest", "block": 128}), ("rank 1 cannot read", {"source": "exact"}),
        ("rank 1 lacks resources", {"timings": [float("inf"), 2, 3], "block": 64}),
        ("rank 1 offline", {"source": "default"}), ("rank 1 offline, told to tune", {"error": "NotTuned"}),
        ("tuned anew", {"source": "tuned", "block": 64, "timings": [3, 2, 2]}),
    ],
)  # fmt: skip
def test_ranks_choose_together(ranks: Answers, case: str, wanted: dict[str, Any]) -> None:
    found = same(ranks, case)
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("other keys", ("n=200", "n=100")),
        ("other lists", ("rank 0", "rank 1")),
        ("other pruning", ("BLOCK=128",)),
        ("bench on rank 0", ("a do_bench of its own", "our bench")),
    ],
)
def test_ranks_that_disagree_all_raise(ranks: Answers, case: str, told: tuple[str, ...]) -> None:
    answer = same(ranks, case)
    assert answer["error"] == "RanksDisagree" and 'ranks="each"' in answer["told"]
    assert all(part in answer["told"] for part in told)


def test_an_exception_on_one_rank_is_the_same_on_all(ranks: Answers) -> None:
    calm, raised = (rank["rank 1 raises"] for rank in ranks)
    assert calm["error"] == raised["error"] == "ValueError" and calm["told"] == raised["told"] == "a bad day"
    assert len(calm["notes"]) == 1 and "rank 1" in calm["notes"][0]
    answer = same(ranks, "rank 1 raises what cannot travel")
    assert answer["error"] == "GangError" and "very picky" in answer["told"]
    assert same(ranks, "afterwards")["block"] == 64


@pytest.mark.parametrize("case", ["each for itself", "a group of one"])
def test_ranks_may_choose_each_for_itself(ranks: Answers, case: str) -> None:
    assert [(rank[case]["source"], rank[case]["block"]) for rank in ranks] == [("tuned", 32), ("tuned", 128)]


def test_a_rank_outside_of_the_group_is_told_so_and_stays_in_step(ranks: Answers) -> None:
    inside, outside = (rank["a group without rank 1"] for rank in ranks)
    named = same(ranks, "a group of all")
    assert inside["source"] == "tuned" and outside["error"] == "InputError"
    assert named["block"] == 128 and named["right"]


def test_our_bench_runs_a_kernel_equally_often_on_all_ranks(tmp_path: Path) -> None:
    quick, slow = run_ranks(__file__, "repeats", 2, tmp_path, argument=str(tmp_path))
    assert quick == slow, "calls by config, winner and latency"
    assert all(count >= 7 for name, count in quick["calls"].items() if name != "reset") and quick["calls"]["reset"] == 1
    one, other = quick["by rank"]
    assert other > 20_000 and one > 0, "rank 1 sleeps for 20 ms a call"


@pytest.mark.parametrize("how", ["first", "later"])
def test_a_rank_that_launches_alone_is_told_so(tmp_path: Path, how: str) -> None:
    answer, _ = run_ranks(__file__, "left_alone", 2, tmp_path, argument=how)
    assert answer["error"] == "GangError" and 'ranks="each"' in answer["told"]


def test_a_rank_that_is_interrupted_leaves_none_waiting(tmp_path: Path) -> None:
    other, interrupted = run_ranks(__file__, "interrupted", 2, tmp_path, argument=str(tmp_path), seconds=270)
    assert [answer["error"] for answer in interrupted] == ["KeyboardInterrupt", "GangError"]
    assert all(answer["error"] == "GangError" for answer in other)


Answer = dict[str, Any]


class Picky(Exception):
    """Does not survive pickling: its constructor wants two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def launch(clock: Any, n: int = 200, tune: bool = False, **options: Any) -> Answer:
    """Launch a fresh kernel, or tune it; how it went on this rank."""
    kernel = autotune.autotune(**{"configs": SIZES, "key": ["n"], "do_bench": clock, **options})(copy())
    kernel.forget()
    out, x = tensors(n)
    try:
        kernel.tune(out, x, n, grid=grid) if tune else kernel[grid](out, x, n)
    except Exception as error:  # noqa: BLE001  to be compared between the ranks
        return {"error": type(error).__name__, "told": str(error), "notes": getattr(error, "__notes__", [])}
    (found,) = kernel.decisions.values()
    timings = [
        timing[0] if isinstance(timing, list) else timing for timing in getattr(kernel, "configs_timings", {}).values()
    ]
    right = torch.equal(out, x)
    return {"source": found.source, "block": kernel.best_config.kwargs["BLOCK"], "timings": timings, "right": right}


def by_rank(*values: Any) -> Any:
    return values[dist.get_rank()]


def raising(error: BaseException, at: int) -> Callable[..., list[float]]:
    """A bench that raises on rank 1 at one config."""
    calls = []

    def bench(kernel_call: Callable[[], object], quantiles: Any) -> list[float]:
        kernel_call()
        calls.append(None)
        if dist.get_rank() == 1 and len(calls) == at:
            raise error
        return [float(len(calls))] * 3

    return bench


def agreement(folder: str) -> dict[str, Answer]:
    """Everything in one go: processes take longer to start than all of it to run."""
    shared, mine = f"sqlite:///{folder}/shared.db", f"sqlite:///{folder}/of_rank{dist.get_rank()}.db"
    never = Clock()
    first = dist.new_group([0])  # rank 0 is in more groups than rank 1
    answers = {"slowest counts": launch(by_rank(Clock(1, 5, 3), Clock(4, 2, 3)), db=shared)}
    with Store.open(shared) as store:
        answers["kept"] = {"studies": len(store.studies()), "world": store.studies()[0].key.world_size}
    answers["all warm"] = launch(never, db=shared)
    answers["rank 1 cold"] = launch(never, db=by_rank(shared, mine))
    answers["rank 0 cold"] = launch(never, db=by_rank(mine, shared))
    answers["neighbour on rank 1"] = launch(never, 201, db=by_rank(mine, shared), free=["n"], on_miss="nearest")
    answers["other keys"] = launch(never, by_rank(200, 100), db=shared)
    answers["other lists"] = launch(never, db=shared, configs=SIZES[: by_rank(2, 3)])
    prune = {"early_config_prune": lambda configs, named, **kwargs: configs[: by_rank(2, 3)]}
    answers["other pruning"] = launch(never, 202, db=shared, prune_configs_by=prune)
    answers["rank 1 raises"] = launch(raising(ValueError("a bad day"), 2), 203, db=shared)
    answers["rank 1 raises what cannot travel"] = launch(raising(Picky("very", "picky"), 1), 203, db=shared)
    full = triton.runtime.errors.OutOfResources(2, 1, "shared memory")
    answers["rank 1 lacks resources"] = launch(raising(full, 1), 204, db=shared)
    answers["rank 1 cannot read"] = launch(never, db=by_rank(shared, folder))
    answers["tuned anew"] = launch(by_rank(Clock(1, 2, 2), Clock(3, 1, 2)), db=shared, tune=True)
    numbers = iter(by_rank((1.0, 5.0, 3.0), (4.0, 2.0, 3.0)))
    answers["a bare number counts"] = launch(lambda call, quantiles: next(numbers), 218, db=shared)
    launch(Clock(1, 2, 3), 216, db=by_rank(mine, f"{mine}_unused"))
    near = {"free": ["n"], "on_miss": "nearest"}
    answers["near on rank 0, exact on rank 1"] = launch(never, db=by_rank(mine, shared), **near)
    answers["afterwards"] = launch(by_rank(Clock(2, 1, 3), Clock(2, 1, 3)), 206, db=shared)
    os.environ["AUTOTUNE_OFFLINE"] = by_rank("0", "1")
    answers["rank 1 offline"] = launch(never, 207, db=shared)
    answers["rank 1 offline, told to tune"] = launch(never, 207, db=shared, tune=True)
    os.environ["AUTOTUNE_OFFLINE"] = "0"
    own = by_rank(Clock(1, 2, 3, 1, 2, 3), Clock(3, 2, 1, 3, 2, 1))
    answers["each for itself"] = launch(own, by_rank(208, 209), db=mine, ranks="each")
    answers["bench on rank 0"] = launch(by_rank(Clock(1, 2, 3), None), 212, db=shared)
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    answers["a group without rank 1"] = launch(Clock(1, 2, 3), 213, db=mine, ranks=lambda: first)
    answers["a group of one"] = launch(own, 210, db=mine, ranks=lambda: alone)
    answers["a group of all"] = launch(Clock(3, 2, 1), 211, db=shared, ranks=lambda: dist.group.WORLD)
    return answers


def repeats(folder: str) -> dict[str, Any]:
    """Runs of the kernel on this rank, with our bench and a slow rank 1; and the result."""
    calls = []

    def before(named: dict[str, Any], reset_only: bool = False) -> None:
        calls.append("reset" if reset_only else named["BLOCK"])
        time.sleep(by_rank(0.0, 0.02))

    kernel = autotune.autotune(SIZES, key=["n"], pre_hook=before, db=f"sqlite:///{folder}/shared.db")(copy())
    out, x = tensors()
    kernel[grid](out, x, 200)
    with Store.open(f"sqlite:///{folder}/shared.db") as store:
        (entry,) = store.entries("copy")
    latency = entry.winner.latency
    return {
        "calls": {str(name): calls.count(name) for name in [32, 64, 128, "reset"]},
        "block": kernel.best_config.kwargs["BLOCK"],
        "by rank": latency.by_rank,
        "iterations": latency.iterations,
        "skew": latency.skew,
    }


def left_alone(how: str) -> Answer:
    """Rank 0 launches and rank 1 does not: from the start, or once there is a group."""
    os.environ["AUTOTUNE_WAIT_SECONDS"] = "2"
    if how == "later":
        launch(Clock(1, 2, 3))
    return launch(Clock(), 300) if dist.get_rank() == 0 else {}


def interrupted(folder: str) -> list[Answer]:
    """Ctrl-C interrupts rank 1 while both tune; both launch again."""
    answers = []
    for own in (raising(KeyboardInterrupt(), 2), Clock(1, 2, 3)):
        try:
            answers.append(launch(own, 300, db=f"sqlite:///{folder}/cache.db"))
        except KeyboardInterrupt:
            answers.append({"error": "KeyboardInterrupt"})
    return answers
