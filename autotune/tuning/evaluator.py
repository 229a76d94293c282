"""The interface of what evaluates configs for the loop: a gang, a program's own ranks, a replay."""

from __future__ import annotations

from typing import Protocol

from autotune.config import Config
from autotune.outcome import Evaluation, HostOverhead, Latency
from autotune.problem import Problem
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.protocol import Failed
from autotune.timeline import Traced
from autotune.workloads import Workload


class Evaluator(Protocol):
    """The interface of a gang for the loop. Tests use one without ranks."""

    @property
    def restarts(self) -> int:
        """Times that the ranks had to be started again."""

    def start(self) -> None:
        """Have the ranks ready for the problem."""

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        """Switch to another problem; ``start`` follows."""

    def close(self) -> None:
        pass

    def evaluate(self, config: Config, seed: int, plan: MeasurePlan) -> Evaluation:
        """Compile, check and measure one config."""

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        """Check a winner of ``latency`` microseconds once more, for longer; None if every result is right."""

    def measure_parts(self, plan: MeasurePlan) -> dict[str, Latency]:
        pass

    def measure_overhead(self) -> HostOverhead | None:
        """The price of an operator's call beside the bound call; None if unknown."""

    def trace(self, config: Config, latency: float) -> Traced | Failed:
        """One traced call of a config of ``latency`` microseconds that was measured before."""

    def measure_rates(self, dtype: str) -> dict[str, float]:
        """Rates of a device and its links per microsecond, by resource; empty if unknown."""
