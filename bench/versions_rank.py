"""A rank of one checkout for ``versions.py``: it calls that checkout's operators with the configs that it is given.

It imports only what every checkout has: ``autotune``, and ``make`` of its own ``bench/outside_cases.py``. A request is
a line of JSON on standard input, ``{"do": METHOD, its arguments…}``, and its answer a line on standard output.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import torch
import torch.distributed as dist

import autotune
from autotune.config import Config
from autotune.errors import AutotuneError

LEAST_CALLS = 20


class Rank:
    """Each of its methods is a request, which all ranks of a checkout get."""

    def __init__(self, context: autotune.Context, ranks_per_gpu: int) -> None:
        self._context, self._staged = context, ranks_per_gpu > 1
        self._on_gpu = context.heap.device.type == "cuda"
        self._calls = 0
        self._run: Callable[[], object] = lambda: None
        """``_calls`` calls of the operator."""

    def default(self, workload: str, fields: dict[str, Any]) -> dict[str, Any]:
        return dict(autotune.lookup(workload, problem(workload, fields)).config)

    def make(self, workload: str, fields: dict[str, Any], config: dict[str, Any]) -> None:
        """Draw operands, compile, and on GPUs capture calls with every set of operands in a graph."""
        self._run = lambda: None  # the former graph and operands go
        gc.collect()
        self._context.release()
        cases = importlib.import_module("outside_experts" if workload.startswith("moe") else "outside_cases")
        made = cases.make(problem(workload, fields), self._context, cases.Collectives(self._staged))
        operator = getattr(autotune, workload)
        setattr(autotune, workload, functools.partial(operator, config=Config(config)))
        try:
            self._calls = made.sets * math.ceil(LEAST_CALLS / made.sets) if self._on_gpu else made.sets
            self._run = self._bound(made.ours, made.sets)
        finally:
            setattr(autotune, workload, operator)
        self._context.check()

    def _bound(self, ours: Callable[[int], object], sets: int) -> Callable[[], object]:
        for number in range(sets):
            ours(number)
        if not self._on_gpu:
            return lambda: [ours(number) for number in range(sets)]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(self._calls):
                ours(number)
        replay: Callable[[], object] = graph.replay
        return replay

    def sample(self, times: int) -> float:
        """Microseconds of a call on the device, from many one after the other that the ranks begin together."""
        dist.barrier(self._context.group)
        self._run()  # in it the kernels of the ranks wait for each other
        if not self._on_gpu:
            begun = time.perf_counter()
            for _ in range(times):
                self._run()
            return (time.perf_counter() - begun) * 1e6 / (times * self._calls)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            self._run()
        end.record()
        end.synchronize()
        self._context.check()
        return float(begin.elapsed_time(end)) * 1e3 / (times * self._calls)


def problem(workload: str, fields: dict[str, Any]) -> Any:
    """Raises AutotuneError where the checkout does not know it."""
    try:
        return getattr(autotune, workload.title().replace("_", ""))(**fields)
    except (AttributeError, TypeError) as error:
        raise AutotuneError(str(error).partition(";")[0]) from error


def serve(context: autotune.Context, ranks_per_gpu: int, answers: IO[str]) -> None:
    """Answer until the input ends. What the checkout refuses is an answer too."""
    rank = Rank(context, ranks_per_gpu)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"found": getattr(rank, asked.pop("do"))(**asked)}
        except AutotuneError as error:
            answer = {"refused": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    rendezvous, rank, world_size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(rank % gpus)
    backend = "cpu:gloo,cuda:nccl" if gpus >= world_size else "cpu:gloo,cuda:gloo" if gpus else "gloo"
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    with autotune.Context((4 << 30) if gpus else 50 << 20) as context:
        serve(context, -(-world_size // gpus) if gpus else 1, answers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
