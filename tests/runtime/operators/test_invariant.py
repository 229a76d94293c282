"""An invariant context: a row's bits do not depend on the call's size, and the config stays the same.

On GPUs each workload is tuned for a few seconds first: pytest tests/runtime/operators/test_invariant.py
"""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from calls import HEAP, Calls, store_winner, url
from ranks_of_functions import run_ranks
from same_rows import NAMES, small_problem

import autotune
from autotune.cli import session
from autotune.db import Store
from autotune.machine import machine
from autotune.runtime.lookup import forget_lookups
from autotune.task import Task
from autotune.tuning import EFFORTS, Budget, tune
from autotune.workloads import workload


def cuts(problem: Any, count: int) -> list[tuple[int, int]]:
    """Odd numbers of rows, as far as ranks share them, and where they begin in the whole batch."""
    rng, least = random.Random(5), problem.least_rows
    sizes = [rng.randrange(least, problem.batch_rows // 2, least) for _ in range(count)]
    return [(rows, rng.randint(0, problem.batch_rows - rows)) for rows in (least, *sizes)]


def test_untuned_calls_of_any_size_give_a_row_the_same_bits(tmp_path: Path) -> None:
    problems = [small_problem(name, 3, seed=4) for name in NAMES]
    arguments = [(problem.workload, problem.as_dict(), cuts(problem, 1)) for problem in problems]
    for told in run_ranks(__file__, "same_bits", 3, tmp_path, argument=(url(tmp_path), arguments)):
        assert told == {name: ["default"] for name in NAMES}


def test_a_context_keeps_its_first_config_whatever_is_tuned_later_and_the_pass_refuses_it(tmp_path: Path) -> None:
    fields = {"m": 64, "n": 32, "k": 64, "world_size": 2, "invariant": True}
    argument = (f"sqlite:///{tmp_path / 'cache.db'}", fields)
    for *told, form, refused in run_ranks(__file__, "first_answer_stays", 2, tmp_path, argument=argument):
        assert told == ["default 1", "default 1", "default 1", "exact 2"]
        assert form == "True" and "invariant context" in refused


GPU_SIZES: dict[str, dict[str, Any]] = {
    "all_gather_gemm": {"m": 512, "n": 4096, "k": 4096}, "gemm_reduce_scatter": {"m": 512, "n": 4096, "k": 4096},
    "gemm_all_reduce": {"m": 512, "n": 4096, "k": 4096}, "gemm_all_reduce_norm": {"m": 512, "n": 4096, "k": 4096},
    "all_reduce_norm": {"m": 512, "n": 4096},
    "flash_decode": {"batch": 64, "q_heads": 32, "kv_heads": 4, "head_dim": 128, "kv_len": 4096, "page_size": 16},
    "moe_combine": {"tokens": 128, "hidden": 2048, "experts": 32, "top_k": 4},
    "moe_gemm_combine": {"tokens": 128, "hidden": 2048, "experts": 32, "top_k": 4, "width": 1024},
    "moe_dispatch_gemm": {"tokens": 128, "hidden": 2048, "experts": 32, "top_k": 4, "width": 1024},
}  # fmt: skip


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize("name", NAMES)
def test_a_tuned_config_gives_a_row_the_same_bits_on_gpus(tmp_path: Path, name: str) -> None:
    problem = workload(name).problem_type(**GPU_SIZES[name], world_size=2, invariant=True, dtype="bf16")
    task, found = Task(problem, machine()), workload(name)
    with (
        Store.open(tmp_path / "cache.db") as store,
        session.make_screen(found, task) as screen,
        closing(session.make_gang(found, task)) as gang,
    ):
        result = tune(found, task, store, gang, screen, budget=Budget(1000, 6.0), effort=EFFORTS["quick"])
    assert result.entry is not None
    assert name == "flash_decode" or result.entry.winner.config["mode"] != "bsp"
    argument = (f"sqlite:///{tmp_path / 'cache.db'}", [(name, problem.as_dict(), cuts(problem, 4))])
    for told in run_ranks(__file__, "same_bits", 2, tmp_path, gpu=True, argument=argument):
        assert told == {name: ["exact"]}


def same_bits(argument: tuple[str, list[tuple[str, dict[str, Any], list[tuple[int, int]]]]]) -> dict[str, list[str]]:
    """By workload: differences of these sizes' calls from rows of a larger one; the config's source."""
    url, problems = argument
    found = {}
    for name, fields, cuts in problems:
        with autotune.Context(HEAP, url=url, invariant=True) as context:
            found[name] = differences(context, workload(name).problem_type(**fields), cuts)
    return found


def differences(context: autotune.Context, problem: Any, cuts: list[tuple[int, int]]) -> list[str]:
    whole = Calls(context, problem)
    whole.refresh(7)
    whole()
    batch, told = whole.operation.batch(), []
    for part in whole.operation.parts().values():  # the library's, whose bits may vary
        part()
    for rows, first in cuts:
        calls = Calls(context, problem.with_rows(rows))
        calls.refresh(7)
        for number in range(2):
            calls.operation.take_rows(batch, first)
            calls()
            if unlike := calls.operation.unlike_rows(batch, first):
                told.append(f"call {number} of {rows} rows from {first} on: {unlike}")
    return [*told, *{context.choose(each).source for each in (problem, problem.with_rows(cuts[0][0]))}]


def first_answer_stays(argument: tuple[str, dict[str, Any]]) -> list[str]:
    """Sources and a knob: untuned, tuned otherwise meanwhile, of another size, in another context."""
    url, fields = argument
    problem, told = autotune.GemmReduceScatter(**fields), []

    def look(context: autotune.Context, rows: int) -> None:
        chosen = context.choose(problem.with_rows(rows))
        told.append(f"{chosen.source} {chosen.config['group_m']}")

    with autotune.Context(HEAP, url=url, invariant=True) as context:
        look(context, problem.m)
        other = context.choose(problem).config.replace(group_m=2)
        if torch.distributed.get_rank() == 0:
            store_winner(url, Task(problem, context.machine), other)
        torch.distributed.barrier()
        forget_lookups()
        context.release()
        look(context, problem.m)
        look(context, 2)
    with autotune.Context(HEAP, url=url, invariant=True) as context:
        look(context, 2)
        return [*told, *refused(context)]


def refused(context: autotune.Context) -> list[str]:
    """The form of a problem in an invariant context, and the pass's error for such a context."""
    problem = autotune.GemmAllReduce(m=4, n=32, k=32 * torch.distributed.get_world_size(), world_size=2)
    told = [str(context.problem(problem).is_invariant)]
    try:
        torch.compile(lambda x: x, backend=autotune.fusing(context))(torch.zeros(1))
    except Exception as error:  # noqa: BLE001  whatever the compiler makes of it
        told.append(str(error))
    return told
