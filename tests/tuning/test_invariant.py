"""One config for all sizes: rows have the same bits in each, what does not is refused, and the time is the sum."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from every_mode import RANKS, on_cpu, whole
from fakes import EIGHT_GPUS, LIMITS, FakeGang, formula, tune_over
from same_rows import NAMES, Rows, configs_of, small_problem

from autotune.config import Config
from autotune.db import Store
from autotune.errors import InputError
from autotune.kernels.launching.mode import GEMM_VARIES, LIBRARY_VARIES
from autotune.outcome import Evaluation, Outcome
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.tuning import EFFORTS, Budget, Result, invariant
from autotune.tuning.invariant import OverSizes
from autotune.workloads import workload


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual proof has tests of its own."""
    monkeypatch.setattr(Gang, "prove", lambda *_: None)
    monkeypatch.setitem(invariant.COMPARED, "interpreter", 1)


def proven(problem: Any, config: Config, seed: int = 3) -> Evaluation | None:
    """The verdict of a winner's proof on ranks."""
    found, here = workload(problem.workload), on_cpu()
    gang, _ = RANKS.turn_to(found, problem)
    return OverSizes(gang, found, problem, here).prove(config, seed, latency=0.0)


@pytest.mark.parametrize(("name", "near"), [*((name, 0) for name in NAMES), *(whole(name, 3) for name in NAMES)])
def test_rows_have_the_same_bits_in_every_batch_in_every_mode_that_is_left(name: str, near: int, briefly: None) -> None:
    problem = small_problem(name, 3, seed=1)
    for config in configs_of(problem, on_cpu(), 1, near):
        failed = proven(problem, config)
        assert failed is None, f"{problem} {config}: {failed}"


DECODE = {"block_n": 16, "programs_per_head": 3, "num_warps": 2}


@pytest.mark.parametrize(("name", "mode", "changed"), [
    ("gemm_reduce_scatter", "push", {}), ("gemm_reduce_scatter", "pull", {}), ("flash_decode", "fused", DECODE),
])  # fmt: skip
def test_the_proof_refuses_sums_from_a_row_s_owner_on_and_sequences_cut_by_their_batch(
    name: str, mode: str, changed: dict[str, Any], briefly: None
) -> None:
    """The same config, right by any tolerance, as the kernels of a problem that is not invariant run it."""
    problem = small_problem(name, 3, seed=2)
    found, here = workload(name), on_cpu()
    first = next(c for c in found.first_configs(Task(problem, here)) if c["mode"] == mode).replace(**changed)
    assert found.space.violation(first, Task(problem, here)) is None
    assert proven(problem, first) is None
    failed = proven(dataclasses.replace(problem, invariant=False), first)
    assert failed is not None and failed.outcome is Outcome.WRONG_RESULT
    assert " differs from row " in failed.reason


@pytest.mark.parametrize("changed", [{"split_k": 2}, {"block_k": 64}])
def test_rows_of_a_config_that_follows_the_size_differ(changed: dict[str, int], briefly: None) -> None:
    """As if split-K, or the depth of a step, were chosen by m."""
    problem, found, here = small_problem("gemm_all_reduce", 2, seed=3), workload("gemm_all_reduce"), on_cpu()
    config = found.default_config(Task(problem, here)).replace(block_k=32, split_k=1)
    gang, _ = RANKS.turn_to(found, problem)
    assert gang.keep_batch(config, 1) is None
    RANKS.turn_to(found, problem.with_rows(5))
    assert gang.compare_rows(config, 2, (0, 2)) is None
    failed = gang.compare_rows(config.replace(**changed), 3, (0, 2))
    assert failed is not None and failed.outcome is Outcome.WRONG_RESULT


def test_a_mode_that_orders_sums_by_the_number_of_rows_is_out_with_the_reason() -> None:
    for name in NAMES:
        found = workload(name)
        plain = found.default_problem(EIGHT_GPUS, 8)
        task = Task(dataclasses.replace(plain, invariant=True), EIGHT_GPUS)
        kept = {str(config["mode"]) for config in found.first_configs(task)}
        for config in (
            *found.first_configs(Task(plain, EIGHT_GPUS)),
            *found.baselines(Task(plain, EIGHT_GPUS)).values(),
        ):
            reason = found.space.violation(config, task) or ""
            assert config["mode"] in kept or reason.endswith((LIBRARY_VARIES, GEMM_VARIES, "has fewer rows")), reason


FOUND = workload("all_gather_gemm")
PROBLEM = FOUND.problem_type(m=4096, n=28672, k=8192, world_size=8, invariant=True)


def run(path: Path, gang: FakeGang, trials: int = 20) -> Result:
    with Store.open(path) as store:
        return tune_over(gang, store, FOUND, Budget(trials), EFFORTS["quick"])


def test_times_are_sums_over_the_sizes_those_of_the_library_too(path: Path) -> None:
    gang = Rows(PROBLEM)
    result = run(path, gang)
    winner, share = result.entry.winner, sum(m / 4096 for m in (4096, 1024, 256, 64, 16, 8))
    assert winner.latency.median == pytest.approx(formula(winner.config) * share)
    assert {each["mode"] for each in gang.calls} >= {"bsp", "push", "pull"} and winner.config["mode"] != "bsp"
    bsp = FOUND.baselines(Task(dataclasses.replace(PROBLEM, invariant=False), EIGHT_GPUS))["bsp graph"]
    assert winner.baselines["bsp graph"].median == pytest.approx(formula(bsp) * share)
    assert winner.limits["gemm"].median == pytest.approx(6 * LIMITS["gemm"])
    sizes = [problem.m for problem, _ in gang.compared]
    assert sizes[0] == 8 and len(sizes) > 2 and all(m % 8 == 0 and m < 4096 for m in sizes)
    assert all(first == 0 and 0 < other <= 4096 - problem.m for problem, (first, other) in gang.compared)


def test_where_rows_differ_the_next_best_takes_the_winner_s_place(path: Path) -> None:
    best = run(path, Rows(PROBLEM)).entry
    config, path = best.winner.config, path.with_name("other.db")
    other = run(path, Rows(PROBLEM, varying=(config,)))
    assert other.entry is not None and other.entry.winner.config["mode"] != "bsp"
    with Store.open(path) as store:
        proofs = [each for each in store.trials(other.study.id) if each.source == "proof"]
    assert [each.config for each in proofs] == [config] and "planted" in proofs[0].evaluation.reason


def test_a_recording_of_one_size_cannot_stand_in_for_the_ranks(path: Path) -> None:
    with pytest.raises(InputError, match="on ranks"):
        run(path, FakeGang(PROBLEM))
