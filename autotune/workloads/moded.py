"""Workloads whose modes are declared: what hangs on a config's mode is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from autotune.config import Config
from autotune.device_rates import rates_of
from autotune.kernels.launching.mode import Mode
from autotune.kernels.launching.way import ModeKernels
from autotune.task import Task
from autotune.workloads.launched import LaunchedWorkload


class ModedWorkload(LaunchedWorkload):
    kernels: ClassVar[ModeKernels[Any, Any]]
    by_rates = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        modes = cls.kernels.modes
        cls.space = modes.space
        overlapping = {name: mode for name, mode in modes.by_name.items() if mode.rungs is not Mode.rungs}
        cls.overlapping = tuple(overlapping)
        cls.boundaries = max((mode.boundaries for mode in overlapping.values()), default=1)

    def default_config(self, task: Task[Any]) -> Config:
        return self.kernels.modes.default_config(task)

    def first_configs(self, task: Task[Any]) -> list[Config]:
        return self.kernels.modes.first_configs(task)

    def rungs(self, task: Task[Any], config: Config) -> Mapping[str, Config | str]:
        rungs = self.kernels.modes.of(config).rungs(task)
        return {letter: rung if isinstance(rung, str) else rung.config() for letter, rung in rungs.items()}

    def predict(self, task: Task[Any], config: Config) -> float | None:
        rates = rates_of(task.machine)
        return None if rates is None else self.kernels.modes.of(config).latency(task, rates)
