"""The bench: times one config with the same number of calls on every rank; per call the slowest rank counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import triton
from triton.compiler.errors import CompilationError
from triton.runtime import driver
from triton.runtime.errors import OutOfResources, PTXASError

from autotune.agreement import Agreement
from autotune.machine import Machine
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.ranks.measure import combine

REFUSALS: dict[type[Exception], Outcome] = {
    OutOfResources: Outcome.OUT_OF_RESOURCES,
    PTXASError: Outcome.DID_NOT_COMPILE,
    CompilationError: Outcome.DID_NOT_COMPILE,
}
"""Errors of a config after which tuning goes on. Triton's own tuner ends at most compilation errors."""

FAILED = (math.inf, math.inf, math.inf)

SECONDS = 0.1
"""Seconds spent on the timed calls of one config, within these numbers of calls."""
FEWEST, MOST = 5, 100

Timing = Any
"""The result of a ``do_bench``: median, 20th and 80th percentile in milliseconds, or another comparable value."""


class Bench:
    """The ``do_bench`` of Triton's autotuner; keeps the outcome of the last config."""

    def __init__(self, agreement: Agreement, given: Callable[..., Timing] | None, machine: Machine) -> None:
        """``given`` is the user's own ``do_bench``."""
        self._agreement, self._given, self._machine = agreement, given, machine
        self.evaluation = Evaluation(Outcome.INVALID, "not timed yet")

    def compile(self, action: Callable[[], object]) -> bool:
        """Compile on every rank before any launches: if one cannot, another would wait for it in the kernel."""
        return self._on_all(action) is not None

    def __call__(self, kernel_call: Callable[[], object], quantiles: Sequence[float]) -> Timing:
        """Time ``kernel_call``; infinite if it fails on a rank because of the config."""
        if self._given is None and (self._agreement.world_size > 1 or self._machine.is_interpreter):
            return self._in_lockstep(kernel_call)
        # A function of the user's times as it likes; Triton's own stops its clock by this rank alone.
        do_bench = self._given or driver.active.get_benchmarker()
        timings = self._on_all(lambda: do_bench(kernel_call, quantiles=quantiles))
        if timings is None:
            return list(FAILED)
        timing = timings[0] if len(timings) == 1 else _slowest(timings)
        self.evaluation = evaluation_of(timing)
        return timing

    def _in_lockstep(self, kernel_call: Callable[[], object]) -> Timing:
        if self._on_all(kernel_call) is None:
            return list(FAILED)
        seconds = max(self._agreement.gather(lambda: self._seconds(kernel_call)))
        iterations = int(min(max(SECONDS / seconds, FEWEST), MOST))
        if self._machine.is_interpreter:
            rows = [self._agreement.gather(lambda: self._seconds(kernel_call) * 1e6) for _ in range(iterations)]
            latency = combine(list(zip(*rows, strict=True)))
        else:
            latency = combine(self._agreement.gather(lambda: self._device_times(kernel_call, iterations)))
        self.evaluation = Evaluation(Outcome.MEASURED, latency=latency)
        return latency.milliseconds

    def _on_all(self, action: Callable[[], Any]) -> list[Any] | None:
        """Every rank's result; None, with the outcome kept, if one of them refused the config."""
        answers = self._agreement.gather(lambda: _refusable(action))
        refused = next((answer for answer in answers if isinstance(answer, Evaluation)), None)
        if refused is not None:
            self.evaluation = refused
            return None
        return answers

    def _seconds(self, call: Callable[[], object]) -> float:
        self._wait()
        begin = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - begin

    def _wait(self) -> None:
        if not self._machine.is_interpreter:
            torch.cuda.synchronize()

    def _device_times(self, call: Callable[[], object], iterations: int) -> list[float]:
        """Microseconds of each call on the device, with a cold L2 and the ranks lined up by a small collective."""
        cache = driver.active.get_empty_cache_for_benchmark()
        flag = torch.zeros(1, device="cuda")
        aligned = "nccl" in dist.get_backend_config(self._agreement.device_group)
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iterations)]
        for before, after in events:
            driver.active.clear_cache(cache)
            if aligned:
                dist.all_reduce(flag, group=self._agreement.device_group)
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in events]


def _refusable(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except tuple(REFUSALS) as error:
        outcome = next(outcome for kind, outcome in REFUSALS.items() if isinstance(error, kind))
        if triton.knobs.autotuning.print:
            print(f"Autotuning failed with {error}")
        return Evaluation(outcome, str(error))


def _slowest(timings: Sequence[Timing]) -> Timing:
    if all(isinstance(timing, list | tuple) for timing in timings):
        return [max(values) for values in zip(*timings, strict=True)]
    return max(timings)


def evaluation_of(timing: Timing) -> Evaluation:
    """The evaluation for a result of ``do_bench``."""
    values = [float(value) * 1e3 for value in (timing if isinstance(timing, list | tuple) else [timing])]
    if not values or not all(math.isfinite(value) for value in values):
        return Evaluation(Outcome.CRASHED, f"do_bench gave {timing}")
    median, low, high = values if len(values) == 3 else (values[0], min(values), max(values))
    return Evaluation(Outcome.MEASURED, latency=Latency(median, low, high, skew=0.0, iterations=1))
