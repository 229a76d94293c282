"""A context by itself, on one rank: whose winners its operators get."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fakes import begun, latency_of

import autotune
from autotune.db import Store, Winner
from autotune.errors import HeapError, HeapExhausted, InputError
from autotune.heap.status import new_status
from autotune.kernels.all_gather_gemm.launch import AllGatherGemmKernels
from autotune.machine import INTERPRETED
from autotune.outcome import Regime
from autotune.runtime import context as module
from autotune.runtime.blocks import Blocks
from autotune.runtime.lookup import forget_lookups
from autotune.runtime.operator import OPERATORS, Operator
from autotune.task import Task
from autotune.workloads import names, workload


def test_without_a_process_group_the_first_step_is_named() -> None:
    with pytest.raises(InputError, match="init_process_group"):
        autotune.Context()


@pytest.mark.parametrize(
    "door",
    [
        autotune.fusing,
        lambda context: autotune.explain(context, torch.nn.Linear(2, 2), torch.zeros(2, 2)),
        lambda context: autotune.nn.ColumnParallelLinear(context, 2, 2),
        lambda context: autotune.nn.ExpertParallel(context, 2, 2, 2),
        lambda context: autotune.all_gather_gemm(context, torch.zeros(2, 2), torch.zeros(2, 2)),
    ],
)
def test_what_takes_a_context_takes_nothing_else(door: Callable[[Any], object]) -> None:
    for other in (None, torch.nn.Linear(2, 2)):
        with pytest.raises(InputError, match=type(other).__name__):
            door(other)


@pytest.mark.parametrize(("given", "size"), [(None, 3 << 20), (2 << 20, 2 << 20)], ids=["setting", "argument"])
def test_the_heaps_size_is_the_argument_or_the_setting(
    alone: None, monkeypatch: pytest.MonkeyPatch, given: int | None, size: int
) -> None:
    monkeypatch.setenv("AUTOTUNE_HEAP_BYTES", str(3 << 20))
    with autotune.Context(given) as context:
        assert size // 2 < context.heap.left <= size


def test_a_heap_too_small_for_a_context_leaves_no_group_behind(alone: None) -> None:
    groups = len(dist.distributed_c10d._world.pg_map)
    with pytest.raises(HeapExhausted, match="heap_bytes"):
        autotune.Context(1)
    assert len(dist.distributed_c10d._world.pg_map) == groups


@pytest.mark.parametrize("regime", Regime)
def test_a_new_winner_of_a_contexts_regime_reaches_it_only_when_it_is_asked_for(
    alone: None, tmp_path: Path, regime: Regime
) -> None:
    """After ``forget_lookups``, and where everything is set up anew: no call and no graph changes in between."""
    url = f"sqlite:///{tmp_path}/cache.db"
    problem = autotune.GemmAllReduce(m=16, n=32, k=32, dtype="fp32", world_size=1)
    found = workload("gemm_all_reduce")
    default = found.default_config(Task(problem, INTERPRETED))
    other = next(each for each in found.first_configs(Task(problem, INTERPRETED)) if each != default)
    with autotune.Context(1 << 20, url=url, regime=regime) as context:
        assert context.choose(problem).source == "default"
        with Store.open(url) as store:
            study = begun(store, found, Task(problem, INTERPRETED), regime)
            store.finish(study.id, Winner(other, latency_of(100.0)))
        context.release()
        assert context.choose(problem).source == "default", "the program has not asked for new winners"
        forget_lookups()
        assert context.choose(problem).config == default, "calls and graphs that were set up keep their config"
        context.release()
        assert (context.choose(problem).source, context.choose(problem).config) == ("exact", other)
        assert [each.winner.config for each in context.tuned(problem.workload)] == [other]


def test_without_gpu_and_interpreter_it_says_what_to_set(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HeapError, match="TRITON_INTERPRET=1"):
        autotune.Context(1 << 20)


def workspace_of(context: Any, *arguments: Any) -> Any:
    return context.workspace(*arguments, lambda made: made)


def test_workloads_with_one_type_of_problem_have_workspaces_and_configs_of_their_own(alone: None) -> None:
    """Such as a class and its variant; they were set up with the kernels and the config of the first one called."""
    plain: Any = workload("gemm_all_reduce")
    problem = autotune.GemmAllReduce(m=16, n=32, k=32, dtype="fp32", world_size=1)
    default = plain.default_config(Task(problem, INTERPRETED))
    other = next(each for each in plain.first_configs(Task(problem, INTERPRETED)) if each != default)

    class Variant(type(plain)):  # type: ignore[misc]
        def default_config(self, task: Task[Any]) -> Any:
            return other

    variant = Variant()
    with autotune.Context(1 << 20, url="sqlite:///there/is/none.db") as context:
        left = context.heap.left
        made = [workspace_of(context, each, problem, None) for each in (plain, variant)]
        assert made[0] is not made[1] is workspace_of(context, variant, problem, None)
        assert context.choose(problem, workload=variant).config == other != context.choose(problem).config
        given = [workspace_of(context, each, problem, other) for each in (plain, variant)]
        assert given[0] is not given[1] is made[1]
        assert context.heap.left < left
        context.release()
        assert context.heap.left == left
        assert workspace_of(context, plain, problem, None) is not made[0]
    with pytest.raises(InputError, match="closed"):
        workspace_of(context, plain, problem, None)


LENGTHS = 20


@pytest.mark.parametrize("found", [workload(name) for name in names()], ids=names())
def test_any_number_of_lengths_takes_the_memory_of_few(alone: None, found: Any) -> None:
    """As in serving: a block serves all lengths that need more than half of it."""
    default = found.default_problem(INTERPRETED, 1)
    configs = [*found.first_configs(Task(default, INTERPRETED)), *found.baselines(Task(default, INTERPRETED)).values()]
    shares = [1 + number * 7 / LENGTHS for number in random.Random(found.name).sample(range(LENGTHS), LENGTHS)]
    varying = default.free
    problems = [
        dataclasses.replace(default, **{name: int(getattr(default, name) * share) for name in varying})
        for share in shares
    ]
    with autotune.Context(1 << 28, url="sqlite:///there/is/none.db") as context:
        for config in {str(config["mode"]): config for config in configs}.values():
            fitting = [each for each in problems if found.space.violation(config, Task(each, INTERPRETED)) is None]
            context.release()
            left = context.heap.left
            workspace_of(context, found, max(fitting, key=lambda each: int(getattr(each, varying[0]))), config)
            largest = left - context.heap.left
            context.release()
            for problem in fitting:
                workspace_of(context, found, problem, config)
            used = left - context.heap.left
            assert used <= 5 * largest + (32 << 10), f"{config}: {used} bytes for {len(fitting)} lengths"


def test_lengths_beyond_those_remembered_take_no_more_memory(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WORKSPACES", 4)
    found: Any = workload("gemm_all_reduce")
    problems = [autotune.GemmAllReduce(m=m, n=32, k=32, dtype="fp32", world_size=1) for m in range(48, 64)]
    with autotune.Context(1 << 20, url="sqlite:///there/is/none.db") as context:
        made = [workspace_of(context, found, problem, None) for problem in problems]
        left = context.heap.left
        assert workspace_of(context, found, problems[-1], None) is made[-1]
        assert workspace_of(context, found, problems[0], None) is not made[0]
        assert context.heap.left == left


@pytest.mark.parametrize("kind", ["begins with something", "is the caller's"])
def test_memory_that_may_not_be_cleared_is_not_shared(alone: None, kind: str) -> None:
    class Begun(AllGatherGemmKernels):
        def scratch(self, *arguments: Any) -> Any:
            made: Any = super().scratch(*arguments)
            made.arrivals.fill_(kind == "begins with something")
            return made

    found: Any = workload("all_gather_gemm")
    with autotune.Context(1 << 20, url="sqlite:///there/is/none.db") as context:
        blocks, kernels, used = Blocks(context.heap, context.machine, new_status(context.heap)), Begun(), []
        for m in (63, 62, 61):
            problem = autotune.AllGatherGemm(m=m, n=32, k=32, in_place=kind == "is the caller's", world_size=1)
            task, left = Task(problem, INTERPRETED), context.heap.left
            blocks.keep(blocks.place(kernels, task, found.default_config(task), 1))
            used.append(left - context.heap.left)
        assert min(used) > 0


def test_a_captured_place_keeps_its_block_or_asks_the_device_each_time(alone: None) -> None:
    """A graph is replayed unseen: nobody else gets into the block, or the host takes nobody's turn for granted."""
    found: Any = workload("gemm_all_reduce")
    runs: list[int] = []

    def placed(m: int) -> Any:
        task = Task(autotune.GemmAllReduce(m=m, n=32, k=32, dtype="fp32", world_size=1), INTERPRETED)
        place = blocks.place(found.kernels, task, found.default_config(task), 1)
        blocks.keep(place)
        place.launch = SimpleNamespace(run=lambda: runs.append(m))
        return place

    with autotune.Context(1 << 20, url="sqlite:///there/is/none.db") as context:
        blocks = Blocks(context.heap, context.machine, new_status(context.heap))
        alone_ = placed(63)
        alone_.captured()
        first, second = placed(62), placed(61)
        assert alone_.lasts and alone_.holder.place == alone_.number and not runs
        assert first.block is second.block is not alone_.block
        second.take()
        assert second.holder.place == second.number
        first.captured()
        for place in (second, first, second):
            assert place.holder.place != place.number
            place.take()
        assert runs == [61, 62, 61, 62, 61] and not first.lasts


def test_what_was_agreed_is_neither_checked_nor_agreed_again(alone: None) -> None:
    checked: list[int] = []
    with autotune.Context(1 << 20) as context:
        for number in (1, 1, 2, 1):
            context.agree_once("call", number, check=lambda number=number: checked.append(number))
    assert checked == [1, 2]


def test_a_second_operator_of_one_name_is_refused_in_our_words() -> None:
    """A notebook's cell that is run again, or a module that is reloaded."""
    assert autotune.gemm_all_reduce, "named, it is loaded"
    with pytest.raises(InputError, match="already"):
        Operator(OPERATORS["gemm_all_reduce"].workload)


def test_a_context_stays_in_its_process(alone: None) -> None:
    """A module that has one is saved whole, or sent to another process; a shallow copy closes what it is a copy of."""
    with autotune.Context(1 << 20) as context:
        layer = autotune.nn.ColumnParallelLinear(context, 4, 4)
        with pytest.raises(InputError, match="pickled"):
            pickle.dumps(layer)
        assert copy.copy(context) is context is copy.deepcopy(layer).context


def test_a_context_that_nobody_closed_warns_as_a_file_does(alone: None) -> None:
    context = autotune.Context(1 << 20)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del context
        gc.collect()
    context = autotune.Context(1 << 20)
    context.close()
    del context
    context = autotune.Context(1 << 20)
    dist.destroy_process_group()
    del context
    gc.collect()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_a_program_may_end_with_an_open_context() -> None:
    """Nothing runs in the torn down interpreter, where it would print "Exception ignored in …"."""
    code = (
        "import time, torch.distributed as dist, autotune\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "context = autotune.Context(1 << 20)\n"
        "time.sleep(0.2)"  # torch 2.13 aborts if gloo's thread drops a collective's tensors as the interpreter ends
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "ignored" not in done.stderr and "Error" not in done.stderr


def test_a_context_closes_after_its_program_has_begun_anew(alone: None) -> None:
    context = autotune.Context(1 << 20)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    context.close()
    with pytest.raises(InputError, match="handle"):
        module.open_context(context.handle)
