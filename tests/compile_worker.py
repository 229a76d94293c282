"""Functions for the workers of the compilation test, which import this module by name."""

from __future__ import annotations

from typing import Any

from autotune.config import Config
from autotune.kernels.launching.plan import Compiled, compile_offline_for
from autotune.machine import Machine
from autotune.workloads import workload


def compile_one(machine: Machine, problem: Any, config: Config) -> list[Compiled]:
    """Declare the target and compile a config of the problem's workload for it."""
    compile_offline_for(machine)
    return workload(problem.workload).compile(problem, config, machine)
