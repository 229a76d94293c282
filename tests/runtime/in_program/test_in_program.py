"""``autotune.tune`` in a running program: one result on all ranks, the same error on all, nobody left waiting."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks_of_functions import held, run_ranks, warnings_told
from torch.utils.flop_counter import FlopCounterMode

import autotune
from autotune.db import CacheKey, Lease, Store
from autotune.errors import InputError
from autotune.machine import machine
from autotune.ranks import evaluation
from autotune.task import Task
from autotune.tuning.effort import EFFORTS, Effort
from autotune.workloads import provenance_of

Answers = list[dict[str, Any]]


@pytest.fixture(scope="module")
def agreement(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("agreement")
    return run_ranks(__file__, "agreeing", 2, folder, argument=str(folder))


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("errors")
    return run_ranks(__file__, "failing", 2, folder, argument=str(folder))


def same(ranks: Answers, name: str) -> Any:
    """The ranks' answer, which is one, but for the time it took."""
    answers = [rank[name] for rank in ranks]
    for answer in answers:
        if isinstance(answer, dict):
            answer.pop("seconds", None)
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def test_all_ranks_get_the_same_config_and_the_database_has_it(agreement: Answers) -> None:
    tuned = same(agreement, "tuned")
    assert tuned["source"] == "exact" and '"flaw":"none"' in tuned["config"] or '"mode":"bsp"' in tuned["config"]
    assert same(agreement, "looked up") == same(agreement, "again") == tuned
    assert (tuned["seed"], tuned["limits"]) == (0, ["sum"])


def test_another_regime_and_another_run_are_entries_of_their_own(agreement: Answers) -> None:
    graph, looked_up, anew, tuned = (
        same(agreement, name)["entry"] for name in ("in a graph", "looked up for a graph", "anew", "tuned")
    )
    assert graph == looked_up and len({graph, anew, tuned}) == 3 and same(agreement, "anew")["seed"] == 1


def test_it_gives_back_what_it_took(agreement: Answers) -> None:
    assert same(agreement, "given back") and same(agreement, "let go")


def test_ranks_wait_together_for_another_process_that_tunes_the_same(agreement: Answers) -> None:
    assert same(agreement, "waited")["source"] == "exact" and same(agreement, "by then the other was done")
    (told,), *others = (rank["told"] for rank in agreement)
    assert "width=512" in told, "once"
    assert not any(others), "by rank 0 alone"


def test_other_routings_are_set_up_and_then_the_problem_again(agreement: Answers) -> None:
    assert same(agreement, "with routings")["source"] == "exact"
    assert same(agreement, "set up") == [1024, 512, 1024]


def test_a_heap_is_as_large_as_the_user_says(agreement: Answers) -> None:
    assert same(agreement, "on a larger heap")["source"] == "exact"


def test_what_fails_on_one_rank_is_the_configs_outcome(agreement: Answers) -> None:
    outcomes = same(agreement, "outcomes")
    assert sum(outcomes.values()) == 7, "as many trials as were asked for"
    assert outcomes["measured"] >= 2
    assert outcomes["out of resources"] >= 2 and outcomes["timed out"] >= 1 and outcomes["wrong result"] >= 1
    assert all(reason.startswith("rank 1: ") for reason in same(agreement, "reasons"))


@pytest.mark.parametrize(
    ("case", "error", "told"),
    [
        ("other problems", "RanksDisagree", "width=257"), ("other seeds", "RanksDisagree", "seed=1"),
        ("other regimes", "RanksDisagree", "isolated"), ("other code", "RanksDisagree", "rank 1"),
        ("never right", "NotTuned", "rank 1"), ("no room", "NotTuned", "HeapExhausted"),
        ("no regime", "InputError", "warm"), ("too many ranks", "InputError", "world_size="),
        ("no effort", "InputError", "none"), ("rank 0 knows no workload", "UnknownWorkload", "none"),
        ("of no file", "InputError", "FILE:CLASS"), ("no database", "StoreError", ""),
        ("raises", "ZeroDivisionError", "planted"),
        ("loses its device", "GangError", "illegal memory access"),
    ],
)  # fmt: skip
def test_an_error_is_the_same_on_all_ranks(errors: Answers, case: str, error: str, told: str) -> None:
    answer = same(errors, case)
    assert answer["error"] == error and told in answer["told"]


def test_the_program_goes_on_after_errors(errors: Answers) -> None:
    assert "config" in same(errors, "afterwards")
    assert same(errors, "the program's own group") == len(errors)


def test_a_rank_that_is_not_back_in_time_is_an_error_on_all_that_wait(tmp_path: Path) -> None:
    answers = run_ranks(__file__, "left_alone", 2, tmp_path, argument=str(tmp_path))
    for how in ("hangs", "late"):
        alone, late = (answer[how] for answer in answers)
        assert alone["error"] == late["error"] == "GangError"
        assert alone["seconds"] < TIMEOUT + 120
    interrupted, other = (answer["is interrupted"] for answer in answers)
    assert interrupted["error"] == "KeyboardInterrupt" and other["error"] == "GangError"
    assert "config" in same(answers, "afterwards")


def test_kernels_are_tuned(tmp_path: Path) -> None:
    one, other = run_ranks(__file__, "kernels", 2, tmp_path, argument=str(tmp_path))
    assert one == other and one["source"] == "exact" and one["off"] < 0.01


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=pytest.mark.gpu(ranks, each=True)) for ranks in (2, 4, 8)])
def test_kernels_are_tuned_on_gpus(ranks: int, tmp_path: Path) -> None:
    found = run_ranks(__file__, "kernels_on_gpus", ranks, tmp_path, gpu=True, argument=str(tmp_path))
    left = [rank.pop("memory") for rank in found]
    assert max(left) < 1 << 20, left
    one, *others = found
    assert all(other == one for other in others) and one["source"] == "exact" and one["off"] < 0.01


def test_a_programs_settings_and_modes_change_nothing_and_stay(tmp_path: Path) -> None:
    ((*tuned, after),) = run_ranks(__file__, "in_a_programs_settings", 1, tmp_path, argument=str(tmp_path))
    assert [each.get("source") for each in tuned] == ["exact"] * 3, tuned
    assert after == {"still there": True}


def test_one_process_alone_is_told_what_to_do() -> None:
    with pytest.raises(InputError, match="init_process_group"):
        autotune.tune("gemm_all_reduce", autotune.GemmAllReduce(m=16, n=32, k=64, world_size=1))


HERE = Path(__file__).parent
TIMEOUT = 1.5
PATIENCE = 5.0

LITTLE = Effort(trials=24, screen=1, iterations=1, finalists=1, rounds=1, routings=1)
"""Each config is measured once, and each of the finals: how well is the matter of other tests."""

Answer = dict[str, Any]


def answer_of(action: Callable[[], Any]) -> Answer:
    begin = time.monotonic()
    try:
        found = action()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  to be compared between the ranks
        return {"error": type(error).__name__, "told": str(error), "seconds": time.monotonic() - begin}
    return {
        "config": found.config.to_json(), "source": found.source, "entry": found.entry.study_id,
        "seed": found.entry.seed, "limits": sorted(found.entry.winner.limits),
    }  # fmt: skip


def flawed() -> Any:
    os.environ["AUTOTUNE_WORKLOADS"] = str(HERE / "flawed_workload.py")
    from autotune.workloads import workload

    return workload("flawed_sum")


def tune(folder: str, width: int = 256, trouble: str = "none", **options: Any) -> Answer:
    ranks = options.pop("world", dist.get_world_size())
    problem = flawed().problem_type(width=width, trouble=trouble, world_size=ranks)
    options = {"trials": 7, "effort": "quick", "url": f"sqlite:///{folder}/cache.db", **options}
    EFFORTS["quick"] = LITTLE  # type: ignore[index]
    evaluation.LONGEST_STAGGER["interpreter"] = 0.02
    evaluation.BURSTS["interpreter"] = 1  # ranks that are far apart have tests of their own, too
    return answer_of(lambda: autotune.tune("flawed_sum", problem, **options))


def agreeing(folder: str) -> dict[str, Any]:
    """The result of a run without errors; the first tuning of its process."""
    answers: dict[str, Any] = {}
    answers["let go"] = let_go(lambda: answers.update(tuned=tune(folder)))
    url, problem = f"sqlite:///{folder}/cache.db", flawed().problem_type(width=256, world_size=dist.get_world_size())
    with Store.open(url) as store:
        trials = store.trials(store.studies()[0].id)
    answers["outcomes"] = Counter(trial.evaluation.outcome for trial in trials if trial.source != "final")
    answers["reasons"] = sorted({trial.evaluation.reason for trial in trials} - {""})
    answers["again"] = tune(folder)
    answers["looked up"] = answer_of(lambda: autotune.lookup("flawed_sum", problem, url=url))
    before = held()
    answers["anew"] = tune(folder, force=True, seed=1, trials=1)
    gc.collect()
    answers["given back"] = held() == before
    with tuned_by_another(url) as done:
        with warnings_told() as told:
            answers["waited"] = tune(folder, width=512, trials=1, timeout=PATIENCE)
        answers["told"] = told
        answers["by then the other was done"] = done.is_set()
    answers["in a graph"] = tune(folder, regime="graph", trials=1)
    answers["looked up for a graph"] = answer_of(
        lambda: autotune.lookup("flawed_sum", problem, url=url, regime="graph")
    )
    flawed().set_up.clear()
    answers["with routings"] = tune(folder, width=1024, trials=1)
    answers["set up"] = list(flawed().set_up)
    os.environ["AUTOTUNE_HEAP_BYTES"] = str(4 << 20)
    answers["on a larger heap"] = tune(folder, width=1 << 19, trials=1)
    del os.environ["AUTOTUNE_HEAP_BYTES"]
    return answers


@contextmanager
def tuned_by_another(url: str) -> Iterator[threading.Event]:
    """For longer than ranks wait for each other, somebody else tunes the sum of width 512; rank 0 sees to it."""
    problem = flawed().problem_type(width=512, world_size=dist.get_world_size())
    done = threading.Event()

    def let_go() -> None:
        done.set()
        store.release(study.id, lease)

    with Store.open(url) as store:
        key, provenance = CacheKey.of(Task(problem, machine())), provenance_of(flawed())
        study, lease = store.study(key, provenance, seed=0, space_size=1), Lease.new()
        timer = threading.Timer(1.2 * PATIENCE, let_go)
        if dist.get_rank() == 0:
            assert store.take_lease(study.id, lease) is None
            timer.start()
        else:
            done.set()
        dist.barrier()
        yield done
        timer.cancel()


def failing(folder: str) -> dict[str, Any]:
    """All that raises on every rank, and that the program goes on."""
    rank, world = dist.get_rank(), dist.get_world_size()
    answers: dict[str, Any] = {
        "other problems": tune(folder, width=256 + rank),
        "other seeds": tune(folder, seed=rank),
        "too many ranks": tune(folder, world=world + 1),
        "other regimes": tune(folder, regime=("graph", "isolated")[min(rank, 1)]),
        "no effort": tune(folder, effort="none"),
        "no regime": tune(folder, regime="warm"),
        "no database": tune(folder, url=f"sqlite:///{folder}"),
    }
    problem = flawed().default_problem(None, world)
    answers["rank 0 knows no workload"] = answer_of(lambda: autotune.tune("flawed_sum" if rank else "none", problem))
    unheard_of = type("Unheard", (type(flawed()),), {"name": "unheard_of"})
    answers["of no file"] = answer_of(lambda: autotune.tune(unheard_of(), problem))
    answers["other code"] = with_other_code(folder)
    answers["never right"] = tune(folder, trouble="is always wrong", trials=3)
    answers["no room"] = tune(folder, width=1 << 19, trials=1)
    answers["raises"] = tune(folder, trouble="raises")
    answers["loses its device"] = tune(folder, trouble="loses its device")
    answers["afterwards"] = tune(folder, trials=1)
    numbers = torch.ones(1)
    dist.all_reduce(numbers)
    answers["the program's own group"] = numbers.item()
    return answers


def with_other_code(folder: str) -> Answer:

    class Changed(type(flawed())):  # type: ignore[misc]
        def source_hash(self) -> str:
            return "changed"

    workload, problem = flawed(), flawed().default_problem(None, dist.get_world_size())
    ours, url = Changed() if dist.get_rank() else workload, f"sqlite:///{folder}/cache.db"
    return answer_of(lambda: autotune.tune(ours, problem, url=url, trials=1, effort="quick"))


def kernels(folder: str) -> Answer:
    """A built-in workload, its kernels and all, while the program has a context open; and the operator afterwards."""
    return tuned_and_used(folder, autotune.GemmAllReduce(m=16, n=32, k=64, world_size=dist.get_world_size()), trials=2,
                          effort="quick")  # fmt: skip


def kernels_on_gpus(folder: str) -> Answer:
    """A size that is worth it; and what is left of the GPU memory that it took."""
    problem = autotune.GemmAllReduce(m=64, n=4096, k=4096, world_size=dist.get_world_size())
    answer = tuned_and_used(folder, problem, budget="20s")
    torch._C._cuda_clearCublasWorkspaces()  # torch keeps 32 MiB for each stream that ever saw a matmul
    return {**answer, "memory": torch.cuda.memory_allocated()}


def tuned_and_used(folder: str, problem: autotune.GemmAllReduce, **options: Any) -> Answer:
    url = f"sqlite:///{folder}/cache.db"
    with autotune.Context(heap_bytes=64 << 20, url=url) as context:
        answer = answer_of(lambda: autotune.tune("gemm_all_reduce", problem, url=url, **options))
        like = {"dtype": torch.bfloat16, "device": context.heap.device}
        a = torch.ones(problem.m, problem.k_local, **like) * (dist.get_rank() + 1)
        c = autotune.gemm_all_reduce(context, a, torch.ones(problem.k_local, problem.n, **like))
        ranks = dist.get_world_size()
        wanted = problem.k_local * ranks * (ranks + 1) / 2
        return {**answer, "off": (c.float() / wanted - 1).abs().max().item()}


def let_go(tuning: Callable[[], None]) -> bool:
    """True if nothing of a function that tunes outlives its return."""
    operand = torch.ones(1)
    alive = weakref.ref(operand)

    def layer(operand: torch.Tensor) -> None:
        tuning()

    layer(operand)
    del operand
    gc.collect()
    return alive() is None


def left_alone(folder: str) -> dict[str, Answer]:
    """Rank 1 hangs in the midst of a config; then it comes too late. Between them rank 0 is interrupted."""
    answers = {"hangs": tune(folder, trouble="hangs", timeout=TIMEOUT)}
    dist.barrier()
    answers["is interrupted"] = tune(folder, trouble="is interrupted", timeout=PATIENCE)
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(2 * TIMEOUT)
    answers["late"] = tune(folder, timeout=TIMEOUT)
    dist.barrier()
    return {**answers, "afterwards": tune(folder, trials=1)}


def in_a_programs_settings(folder: str) -> list[Answer]:
    """Tunings under a program's dtype, device, autocast and dispatch mode; and whether these, and the RNG, are kept."""
    url = f"sqlite:///{folder}/cache.db"
    scaled = autotune.AllGatherGemm(m=16, n=32, k=128, dtype="fp8", scales="row", b_order="nk", world_size=1)
    plain = autotune.GemmAllReduce(m=16, n=32, k=64, dtype="fp32", world_size=1)
    mixture = autotune.MoeDispatch(tokens=8, experts=4, top_k=2, hidden=32, routing="zipf", exponent=1.0, world_size=1)
    torch.set_default_dtype(torch.bfloat16)
    EFFORTS["quick"] = replace(LITTLE, routings=0)  # type: ignore[index]
    drawn = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), FlopCounterMode(display=False) as counter:
        answers = [
            answer_of(lambda problem=each: autotune.tune(problem.workload, problem, trials=1, url=url))  # type: ignore[misc]
            for each in (scaled, plain, mixture)
        ]
        still_there = torch.is_autocast_enabled("cpu") and torch.empty(0).dtype is torch.bfloat16
        still_there &= torch.empty(0).is_meta
        torch.empty(1, 2) @ torch.empty(2, 3)
    still_there &= torch.equal(torch.get_rng_state(), drawn) and counter.get_total_flops() == 12
    return [*answers, {"still there": still_there}]
