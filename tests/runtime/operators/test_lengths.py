"""Lengths of one problem share memory: right in any order of calls and replays, and little of it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from calls import HEAP, Calls
from ranks_of_functions import run_ranks

import autotune
from autotune.task import Task
from autotune.workloads import names, workload
from autotune.workloads.launched import LaunchedWorkload


def test_lengths_in_any_order_are_right_in_every_mode(tmp_path: Path) -> None:
    for wrong in run_ranks(__file__, "in_any_order", 2, tmp_path, argument=1):
        assert not wrong


@pytest.mark.gpu(2)
def test_graphs_of_several_lengths_stay_valid_in_every_mode(tmp_path: Path) -> None:
    for wrong in run_ranks(__file__, "captured", 2, tmp_path, gpu=True, argument=1):
        assert not wrong


LENGTHS = (0.8, 0.4, 0.6)


def _every_mode(context: autotune.Context, shares: Sequence[float]) -> Iterator[tuple[LaunchedWorkload, Any, Any]]:
    """Every built-in workload, its problems by their share, and a config of each mode that all of them may have."""
    for name in names():
        found: Any = workload(name)
        default, here = found.default_problem(context.machine, dist.get_world_size()), context.machine
        problems = {share: _of_length(default, share) for share in shares}
        configs = [
            config
            for problem in problems.values()
            for config in (*found.first_configs(Task(problem, here)), *found.baselines(Task(problem, here)).values())
        ]
        fitting = [
            c for c in configs if not any(found.space.violation(c, Task(each, here)) for each in problems.values())
        ]
        assert {str(config["mode"]) for config in fitting} == {str(config["mode"]) for config in configs}
        for config in {str(config["mode"]): config for config in reversed(fitting)}.values():
            yield found, problems, config


def _of_length(problem: Any, share: float) -> Any:
    """The problem with so much of its varying sizes, in whole pairs for the two ranks."""
    sizes = {name: max(1, round(getattr(problem, name) * share / 2)) * 2 for name in problem.free}
    return dataclasses.replace(problem, **sizes)


def in_any_order(seed: int) -> list[str]:
    """Calls that were wrong, of all modes, where lengths come in any order."""
    wrong = []
    draw = random.Random(seed)
    with autotune.Context(HEAP, url="sqlite:///there/is/none.db") as context:
        for found, problems, config in _every_mode(context, LENGTHS):
            order = draw.sample(LENGTHS, draw.choice((2, 2, 3)))
            order.append(order[0])
            made: dict[float, Calls] = {}
            for turn, share in enumerate(order):
                if share not in made:
                    made[share] = Calls(context, problems[share], config)
                made[share].refresh(turn)
                made[share]()
                if not made[share].right():
                    wrong.append(f"{found.name} {config}: call {turn} of {order}")
        context.check()
    return wrong


def captured(seed: int) -> list[str]:
    """Replays and calls that were wrong: one length is captured alone, two while all share memory, the last never."""
    wrong = []
    draw = random.Random(seed)
    with autotune.Context(4 * HEAP, url="sqlite:///there/is/none.db") as context:
        for found, problems, config in _every_mode(context, (*LENGTHS, 1.0)):
            context.release()
            if found.kernels.has_collective(found.kernels.knobs.of(config)):
                continue
            made: list[Calls] = []
            graphs = []
            for problem in problems.values():
                made.append(Calls(context, problem, config))
                made[-1].refresh(0)
                made[-1]()
                if not graphs:
                    graphs.append(_captured(made[0]))
            graphs += [_captured(calls) for calls in made[1:3]]
            ways: list[Any] = [*[(calls, graph.replay) for calls, graph in zip(made, graphs, strict=False)]]
            ways += [(calls, calls) for calls in made]
            for turn in range(20):
                number = draw.randrange(len(ways))
                calls, way = ways[number]
                calls.refresh(turn)
                way()
                if not calls.right():
                    wrong.append(f"{found.name} {config}: way {number} in turn {turn}")
        context.check()
    return wrong


def _captured(calls: Calls) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    return graph
