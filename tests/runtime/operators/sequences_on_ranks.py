"""A rank that carries out the sequences of calls that it is sent, in lockstep with the other ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from calls import HEAP, call, drawn, error, problems
from ranks_of_functions import join

import autotune
from autotune.config import Config
from autotune.problem import Problem
from autotune.processes.bound import parents_connection
from autotune.task import Task
from autotune.workloads import workload

URL = "sqlite:///there/is/none.db"

Step = dict[str, Any]


class Rank:
    """The state of a sequence: up to two contexts, the operands of earlier calls, results not compared yet."""

    def __init__(self) -> None:
        self._contexts: dict[int, autotune.Context] = {}
        self._operands: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._results: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._wrong: list[str] = []
        self._streams = [torch.cuda.Stream() for _ in range(2)] if torch.cuda.is_available() else []

    def play(self, steps: list[Step]) -> list[str]:
        for step in steps:
            if step["late"] == dist.get_rank():
                time.sleep(0.02)
            getattr(self, "_" + step["do"])(step)
        for number in sorted(self._contexts):
            self._close({"context": number})
        self._compare()
        self._operands.clear()
        wrong, self._wrong = self._wrong, []
        return wrong

    def _opened(self, step: Step) -> autotune.Context:
        number = step["context"]
        if number not in self._contexts:
            self._contexts[number] = autotune.Context(HEAP // 4, url=URL)
        return self._contexts[number]

    def _call(self, step: Step) -> None:
        """Several calls on the same addresses, with other inputs each time; nobody waits in between."""
        context = self._opened(step)
        device = context.heap.device
        number = step["problem"] % len(problems(device))
        problem = problems(device)[number]
        config = _chosen(problem, context, step["config"])
        with self._on(step["stream"]):
            for turn in range(step["times"]):
                operands, reference = drawn(problem, step["seed"] + turn, device)
                operands = self._placed((step["context"], number), operands, again=step["same"] or turn > 0)
                here = problem
                if step["in_place"] and problem.workload == "all_gather_gemm":
                    here = dataclasses.replace(problem, in_place=True)
                    shard = autotune.all_gather_shard(context, here, config=config).copy_(operands[0])
                    operands = (shard, *operands[1:])
                out = torch.full_like(reference, float("nan"), dtype=operands[0].dtype) if step["out"] else None
                result = call(context, here, operands, out=out, config=config)
                self._results.append((f"{problem} {config}", result.clone(), reference))

    def _placed(self, key: tuple[int, int], operands: tuple[Any, ...], again: bool) -> tuple[Any, ...]:
        """The operands where those of the last such call lie, or somewhere else."""
        if not again or key not in self._operands:
            self._operands[key] = operands
        for mine, fresh in zip(self._operands[key], operands, strict=True):
            if mine is not None and mine is not fresh:
                mine.copy_(fresh)
        return self._operands[key]

    def _on(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """One of two streams, after all that there is: operands and results go from one to the other."""
        if not self._streams or not stream:
            return contextlib.nullcontext()
        torch.cuda.synchronize()
        return _synchronised(self._streams[stream % len(self._streams)])

    def _release(self, step: Step) -> None:
        self._opened(step).release()

    def _close(self, step: Step) -> None:
        context = self._contexts.pop(step["context"], None)
        if context is not None:
            context.check()
            context.close()

    def _check(self, step: Step) -> None:
        self._opened(step).check()
        self._compare()

    def _compare(self) -> None:
        for name, result, reference in self._results:
            off = error(result, reference)
            if not off < 1.2e-2:
                self._wrong.append(f"off by {off:.2g}: {name}")
        self._results.clear()


@contextlib.contextmanager
def _synchronised(stream: Any) -> Any:
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def _chosen(problem: Problem, context: autotune.Context, number: int) -> Config | None:
    """None, which is looked up, or one of those that a search would try first."""
    plugin = workload(problem.workload)
    sharing = not context.machine.is_interpreter and dist.get_world_size() > torch.cuda.device_count()
    baselines = () if sharing else plugin.baselines(Task(problem, context.machine)).values()
    found = [*plugin.first_configs(Task(problem, context.machine)), *baselines]
    found = [config for config in found if not (sharing and config["mode"] == "bsp")]
    return [None, *found][number % (len(found) + 1)]


def main() -> None:
    driver = parents_connection()
    join(*driver.recv())
    player = Rank()
    driver.send("ready")
    try:
        while True:
            driver.send(player.play(driver.recv()))
    except EOFError:
        os._exit(0)


if __name__ == "__main__":
    main()
