"""Workloads whose modes are declared: what hangs on a config's mode is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from autotune.config import Config
from autotune.device_rates import rates_of
from autotune.kernels.launching.way import ModeKernels
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads.launched import LaunchedWorkload


class ModedWorkload(LaunchedWorkload):
    kernels: ClassVar[ModeKernels[Any, Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        modes = cls.kernels.modes
        cls.space = modes.space
        overlapping = {name: mode for name, mode in modes.by_name.items() if mode.overlaps}
        cls.overlapping = tuple(overlapping)
        cls.boundaries = max((mode.boundaries for mode in overlapping.values()), default=1)

    def default_config(self, problem: Any, machine: Machine) -> Config:
        return self.kernels.modes.default_config(Task(problem, machine))

    def first_configs(self, problem: Any, machine: Machine) -> list[Config]:
        return self.kernels.modes.first_configs(Task(problem, machine))

    def rungs(self, problem: Any, config: Config, machine: Machine) -> Mapping[str, Config | str]:
        rungs = self.kernels.modes.of(config).rungs(Task(problem, machine))
        return {letter: rung if isinstance(rung, str) else rung.config() for letter, rung in rungs.items()}

    def predict(self, problem: Any, config: Config, machine: Machine) -> float | None:
        rates = rates_of(machine)
        return None if rates is None else self.kernels.modes.of(config).latency(Task(problem, machine), rates)
