"""A replay: replaces the ranks, and answers from a recording."""

from __future__ import annotations

from autotune.config import Config
from autotune.errors import InputError
from autotune.outcome import Evaluation, HostOverhead, Latency, Outcome
from autotune.problem import Problem
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.protocol import Failed
from autotune.recordings.recording import Recording
from autotune.timeline import Traced
from autotune.workloads import Workload


class Replay:
    """An evaluator of the tuning loop without ranks: always the same answer for a config, at once."""

    def __init__(self, recording: Recording) -> None:
        """``asked`` holds the configs that were asked for, in order."""
        self.recording = recording
        self.restarts = 0
        self.asked: list[Config] = []

    def start(self) -> None:
        """No ranks to start."""

    def close(self) -> None:
        """No ranks to end."""

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        """Raise InputError for any other problem than the recorded one."""
        if workload.name != self.recording.workload or self.recording.problem_of(workload) != problem:
            raise InputError(
                f"the recording is of {self.recording.workload} {dict(self.recording.problem)}, not of "
                f"{workload.name} {problem}: replay another recording"
            )

    def evaluate(self, config: Config, seed: int, plan: MeasurePlan) -> Evaluation:
        """The recorded evaluation, whatever the seed and the plan; invalid for configs outside the reduced space."""
        self.asked.append(config)
        found = self.recording.evaluations.get(config)
        return found or Evaluation(Outcome.INVALID, "not in the recording: outside of the reduced space")

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        """Always right: the recording's measured configs were checked."""
        return None

    def measure_parts(self, plan: MeasurePlan) -> dict[str, Latency]:
        return dict(self.recording.parts)

    def measure_overhead(self) -> HostOverhead | None:
        """None: a recording is of bound calls."""
        return None

    def trace(self, config: Config, latency: float) -> Traced | Failed:
        """The recorded one, of few configs."""
        found = self.recording.timeline.get(config.to_json())
        return found or Failed(Outcome.INVALID, "no call of it was recorded")

    def measure_rates(self, dtype: str) -> dict[str, float]:
        """None: a recording has no rates."""
        return {}
