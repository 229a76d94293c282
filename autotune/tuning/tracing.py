"""Traced calls: the library's way beside the winner, after all else, in a second."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

from autotune.config import Config
from autotune.errors import AutotuneError
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.problem import Problem
from autotune.ranks.protocol import Failed
from autotune.settings import TRACE
from autotune.task import Task
from autotune.timeline import Timeline, Traced
from autotune.tuning.evaluator import Evaluator
from autotune.tuning.screening import Screen
from autotune.workloads import Workload

LOG = logging.getLogger("autotune")

SECONDS = 1.0
"""After so many no further call is traced; half of it may pass until a twin is compiled."""
LONGEST = 0.02
"""The longest call that is traced, as a share of these seconds."""

Calls = dict[str, tuple[Config, float]]
"""Configs and their latencies in microseconds, by the name of a call."""


class Tracer:
    """Fails for no call. Twins, whose kernels leave stamps, are compiled while others are measured."""

    def __init__(self, workload: Workload, task: Task[Problem], gang: Evaluator, screen: Screen) -> None:
        self._workload, self._gang, self._screen = workload, gang, screen
        self.seconds = math.inf if task.machine.is_interpreter else SECONDS
        asked = TRACE.value()
        self.is_on = not task.machine.is_interpreter if asked is None else asked
        self._compiling: dict[Config, Future[Any] | None] = {}

    def compile(self, config: Config) -> None:
        """Begin to compile the config's twin."""
        twin = self._workload.traced(config)
        if self.is_on and twin != config and config not in self._compiling:
            self._compiling[config] = self._screen.submit(twin)

    def timeline(self, calls: Calls) -> Timeline:
        """All of the calls, or nothing."""
        begin, found = time.monotonic(), Timeline()
        for name, (config, latency) in calls.items() if self.is_on else ():
            try:
                traced = self._refused(config, latency, begin) or self._gang.trace(config, latency)
            except AutotuneError as error:
                traced = Failed(Outcome.CRASHED, str(error))
            if not isinstance(traced, Traced):
                LOG.info("no timeline, since %s is not traced: %s", name, traced.reason)
                return {}
            found[name] = traced.sampled()
            LOG.info("%s traced after %.2f s", name, time.monotonic() - begin)
        return found

    def _refused(self, config: Config, latency: float, begin: float) -> Evaluation | Failed | None:
        self.compile(config)
        future = self._compiling.get(config)
        if future is not None and wait([future], timeout=self.seconds / 2).not_done:
            return Failed(Outcome.TIMED_OUT, "its twin is still being compiled")
        if latency > 1e6 * LONGEST * self.seconds or time.monotonic() - begin > self.seconds:
            return Failed(Outcome.TIMED_OUT, "it takes too long")
        return self._screen.verdict(config, future)


def compared(baselines: Mapping[str, Config], best: Config, measured: Mapping[Config, Latency]) -> Calls:
    """The fastest eager baseline, since a graph hides its operations, and the winner by its mode; where that is a
    baseline, the fastest other config.
    """
    time_of = {config: latency.median for config, latency in measured.items()}
    eager = {name: each for name, each in baselines.items() if each in measured and each.get("launch") != "graph"}
    others = [each for each in measured if each not in baselines.values()]
    if not eager or not others:
        return {}
    library = min(eager, key=lambda name: time_of[eager[name]])
    other = best if best in others else min(others, key=time_of.__getitem__)
    return {library: (eager[library], time_of[eager[library]]), str(other.get("mode", "ours")): (other, time_of[other])}
