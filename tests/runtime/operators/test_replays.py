"""Calls of several launches on GPUs: replayed from graphs of their own, and right however they come.

pytest tests/runtime/operators/test_replays.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from calls import HEAP, MODES, WORST, call, configs, drawn, problems, url
from ranks_of_functions import run_ranks
from two_ranks import GPUS

import autotune
from autotune.kernels.launching import graphs
from autotune.task import Task
from autotune.workloads import workload

SEVERAL_LAUNCHES = {
    "all_gather_gemm": {"custom_collective", "copy_engine", "push"},
    "gemm_reduce_scatter": {"custom_collective", "copy_engine"},
    "gemm_all_reduce": {"custom_collective"},
    "flash_decode": {"iris_all_gather", "fine_grained_wait", "fused"},
}
"""Modes that have configs whose calls are several launches."""


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", MODES)
def test_replayed_calls_are_right_however_they_come(tmp_path: Path, gpu: str, name: str) -> None:
    answers = run_ranks(__file__, "replays", 2, tmp_path, gpu=gpu, argument=(url(tmp_path), name), seconds=540)
    for found in answers:
        assert {key.split()[1] for key in found["worst"]} >= MODES[name] - {"bsp"}
        assert max(found["worst"].values()) < WORST, found["worst"]
        assert set(found["replaying"]) >= SEVERAL_LAUNCHES[name]
        assert found["left"] == 0, "graphs are left of a context that is closed"


def replays(arguments: tuple[str, str]) -> dict[str, Any]:
    """The worst error of each mode of an operator, in each of the ways in which eager calls come to be replayed."""
    url, name = arguments
    worst: dict[str, float] = {}
    replaying = set()
    with autotune.Context(HEAP, url=url) as context:
        device = context.heap.device
        for problem in (problem for problem in problems(device) if problem.workload == name):
            inputs = [drawn(problem, seed, device) for seed in range(8)]
            for config in several_launches(problem, context):
                before = len(graphs._REPLAYED)
                ways = Ways(context, problem, config, inputs)
                for way in ("same_addresses", "new_addresses", "streams", "outer_capture", "compiled"):
                    here = f"{name} {config['mode']} {way}"
                    worst[here] = max(worst.get(here, 0.0), getattr(ways, way)())
                    context.check()
                if len(graphs._REPLAYED) > before:
                    replaying.add(str(config["mode"]))
    return {"worst": worst, "replaying": sorted(replaying), "left": len(graphs._REPLAYED)}


def several_launches(problem: Any, context: autotune.Context) -> list[Any]:
    """One config of each mode, and the ways to push that take two launches."""
    found = configs(Task(problem, context.machine))
    pushing = [config.replace(head_start=0) for config in found if config["mode"] == "push" and "push_site" in config]
    variants = [config.replace(push_site="same_stream") for config in pushing]
    variants += [config.replace(push_site="side_stream", schedule="persistent") for config in pushing]
    decoding = [config for config in found if config["mode"] == "fused"]
    variants += [config.replace(reducer="kernel", combine_site="next_launch") for config in decoding]
    space = workload(problem.workload).space
    return [*found, *(c for c in variants if space.violation(c, Task(problem, context.machine)) is None)]


class Ways:
    """Calls of one config in every way; each method returns the worst error of its calls, compared at the end."""

    def __init__(self, context: autotune.Context, problem: Any, config: Any, inputs: list[Any]) -> None:
        self._context, self._problem, self._config, self._inputs = context, problem, config, inputs
        self._operands = self._copies(0)
        self._out = torch.empty_like(inputs[0][1], dtype=self._operands[0].dtype)

    def _copies(self, turn: int) -> tuple[Any, ...]:
        return tuple(None if x is None else x.clone() for x in self._inputs[turn % len(self._inputs)][0])

    def _refill(self, turn: int) -> torch.Tensor:
        fresh, reference = self._inputs[turn % len(self._inputs)]
        for mine, source in zip(self._operands, fresh, strict=True):
            if mine is not None:
                mine.copy_(source)
        self._out.fill_(float("nan"))
        return reference

    def _call(self, operands: tuple[Any, ...]) -> torch.Tensor:
        return call(self._context, self._problem, operands, out=self._out, config=self._config)

    def _off(self, reference: torch.Tensor) -> torch.Tensor:
        return (self._out.float() - reference).norm() / reference.norm()

    @staticmethod
    def _worst(errors: list[torch.Tensor]) -> float:
        return float(torch.stack(errors).nan_to_num(nan=float("inf")).max())

    def same_addresses(self) -> float:
        errors = []
        for turn in range(100):
            reference = self._refill(turn)
            self._call(self._operands)
            errors.append(self._off(reference))
        return self._worst(errors)

    def new_addresses(self) -> float:
        errors, alive = [], []
        for turn in range(12):
            reference = self._refill(turn)
            alive.append(self._copies(turn))
            self._call(alive[-1])
            errors.append(self._off(reference))
        return self._worst(errors)

    def streams(self) -> float:
        """Each turn on another stream, which waits for the one before as the caller has to."""
        here, errors = torch.cuda.current_stream(), []
        streams = [torch.cuda.Stream(), torch.cuda.Stream(), here]
        for turn in range(30):
            stream = streams[turn % 3]
            stream.wait_stream(streams[(turn - 1) % 3])
            with torch.cuda.stream(stream):
                reference = self._refill(turn)
                self._call(self._operands)
                errors.append(self._off(reference))
        for stream in streams[:2]:
            here.wait_stream(stream)
        return self._worst(errors)

    def outer_capture(self) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._call(self._operands)
        errors = []
        for turn in range(20):
            reference = self._refill(turn)
            if turn % 3:
                graph.replay()
            else:
                self._call(self._operands)
            errors.append(self._off(reference))
        return self._worst(errors)

    def compiled(self) -> float:
        def layer(operands: tuple[Any, ...], out: torch.Tensor) -> None:
            call(self._context, self._problem, operands, out=out, config=self._config)

        torch._dynamo.reset()
        function = torch.compile(layer, fullgraph=True)
        errors = []
        for turn in range(6):
            reference = self._refill(turn)
            function(self._operands, self._out)
            errors.append(self._off(reference))
        return self._worst(errors)
