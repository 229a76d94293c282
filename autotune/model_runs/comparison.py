"""Modules by several ways on a context's ranks: built from the same weights, compiled, compared, timed in turns."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from autotune.compiled.fusing import fusing
from autotune.errors import WrongResult
from autotune.model_runs.clock import TOY, Clock, Plan, Ratio, captured
from autotune.outcome import Regime
from autotune.results.regimes import is_captured
from autotune.runtime.context import Context

Tensor = torch.Tensor
Row = dict[str, Any]
M = TypeVar("M", bound=nn.Module)

PLAIN = "plain"
"""The way that others are compared with."""

RIVALS = (PLAIN, "gathered")
"""The ways that are not ours; a mixture has a second one. The fastest of them is compared with."""

WAYS = (PLAIN, "styles", "fusing")
"""Plain PyTorch; ``autotune.nn``; plain, with the pass of ``torch.compile``."""

TOLERANCE = 3e-2
"""Largest |result - plain's| / |plain's| (Frobenius): every way rounds to bf16 at each step through the layers."""

CLOCK = Plan(rounds=4, seconds=0.05, warm_up=0.15)


class Comparison:
    """The ways on this rank. Times are wall clock of the slowest rank, in microseconds."""

    def __init__(self, context: Context) -> None:
        """Collective. Samples are short on GPUs, and a few calls elsewhere."""
        self.context, self.device = context, context.heap.device
        self.on_gpu = self.device.type == "cuda"
        self.mesh = init_device_mesh(self.device.type, (context.heap.world_size,))
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 512
        self.clock = Clock(self.device, context.group, CLOCK if self.on_gpu else TOY)

    def ways(self) -> tuple[str, ...]:
        """Ways that run here: the pass needs the code that inductor generates for GPUs."""
        return WAYS if self.on_gpu else WAYS[:2]

    def model(self, way: str, dtype: torch.dtype, build: Callable[[], M], whole: bool = False) -> M:
        """A way's module on this rank's device, with the same random weights of this type each time; compiled for every
        shape anew, as a ``whole``, else by its ``layers``: one's code serves all. Collective.
        """
        torch.manual_seed(17)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with self.device:
                made = build()
        finally:
            torch.set_default_dtype(before)
        how: dict[str, Any] = {"backend": "inductor" if self.on_gpu else "aot_eager"}
        if way == "fusing":
            how = {"options": fusing(self.context)}
        layers: Any = [made] if whole else made.layers
        for each in layers:
            each.compile(dynamic=False, **how)
        return made

    def forwards(self, models: Mapping[str, nn.Module], x: Tensor, eager: Collection[str] = ()) -> Row:
        """All ways with the same input: eager, and on GPUs captured in CUDA graphs, too, but for ``eager``. Collective.

        Raises WrongResult on every rank where any rank's result of any way is not plain's.
        """
        with torch.no_grad(), ExitStack() as graphs:
            calls: dict[str, Callable[[int], Any]] = {
                f"{way} eager": lambda _, model=model: model(x)  # type: ignore[misc]
                for way, model in models.items()
            }
            found = {name: call(0).clone() for name, call in calls.items() for _ in range(3 if self.on_gpu else 1)}
            failed = ""
            if self.on_gpu:
                replays, failed = self._captured(
                    {way: calls[f"{way} eager"] for way in models if way not in eager}, graphs
                )
                for name, (replay, results) in replays.items():
                    calls[name] = replay
                    replay(0)
                    found[name] = results[0].clone()
            right = found[f"{PLAIN} eager"].float()
            errors = {name: float((each - right).norm() / right.norm()) for name, each in found.items()}
            worst = self.check(errors, TOLERANCE)
            return {**row(self.clock.busy(calls, 1), worst), "not_captured": failed}

    def _captured(
        self, calls: Mapping[str, Callable[[int], Any]], graphs: ExitStack
    ) -> tuple[dict[str, tuple[Callable[[int], Any], list[Any]]], str]:  # fmt: skip
        """Each way's graph; none, and the reason, where one fails on any rank: then eager calls alone are compared."""
        found = {}
        for way, call in calls.items():
            failed = ""
            try:
                found[f"{way} graph"] = graphs.enter_context(captured(call, 1))
            except RuntimeError as error:
                failed = f"{way}: {str(error).strip().splitlines()[0]}"
            if any(everyone := self.gathered(failed)):
                return {}, next(filter(None, everyone))
        return found, ""

    def check(self, errors: Mapping[str, float], allowed: float) -> float:
        """The largest error of all ranks. Collective; raises WrongResult on every rank where one is too large."""
        self.context.check()  # behind the exchange another rank may have given up by what is raised here
        everyone = self.gathered(dict(errors))
        worst: dict[str, float] = {
            name: max((each[name] for each in everyone), key=lambda error: (math.isnan(error), error))
            for name in errors
        }
        if not all(error <= allowed for error in worst.values()):
            raise WrongResult(f"results differ from plain's by {worst}, allowed is {allowed:.0e}; nothing is claimed")
        return max(worst.values())

    def gathered(self, mine: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.mesh.size()
        dist.all_gather_object(everyone, mine, group=self.context.group)
        return everyone

    def forget(self) -> None:
        """Give back compiled code, workspaces and memory. Collective."""
        torch.compiler.reset()
        self.context.release()
        if self.on_gpu:
            torch.cuda.empty_cache()


def row(times: Mapping[str, list[float]], error: float) -> Row:
    """The fastest call of each way, by the geometric mean of its rounds, and the fastest rival's time over that."""
    means = {name: statistics.geometric_mean(each) for name, each in times.items()}
    fastest: dict[str, str] = {}
    for name in sorted(times, key=means.__getitem__):
        fastest.setdefault(name.split()[0], name)
    rival = next(name for way, name in fastest.items() if way in RIVALS)
    ratios = {way: Ratio.of_rounds(times[rival], times[name]) for way, name in fastest.items() if way not in RIVALS}
    return {
        "us": means, "fastest": fastest, "rival": rival, "error": error,
        "ratios": {way: dataclasses.asdict(ratio) for way, ratio in ratios.items()},
    }  # fmt: skip


def best(found: Row) -> tuple[str, Ratio]:
    """The fastest of our ways in a row, and the fastest rival's time over its."""
    way = max(found["ratios"], key=lambda each: found["ratios"][each]["value"])
    return way, Ratio(**found["ratios"][way])


def called_in(found: Row, eager: Regime) -> Regime:
    """The regime of a row's fastest rival: that of graphs where it was captured, else ``eager``."""
    return Regime.GRAPH if is_captured(found["rival"]) else eager
