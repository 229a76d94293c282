"""Compiles configs for GPUs that are not here, in processes that the tests share; they import this module by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from autotune.config import Config
from autotune.kernels.launching.plan import Compiled, Launch, compile_all, compile_offline_for
from autotune.kernels.primitives.probes import occupying_kernel
from autotune.machine import H100, Machine
from autotune.processes.pool import Pool
from autotune.ranks.gang import IMPORTS
from autotune.task import Task
from autotune.workloads import workload

DEADLINE = 900.0
"""Seconds; only a real hang takes as long."""


def compile_one(task: Task[Any], config: Config) -> list[Compiled]:
    """In a process of ``Compilers``: compile a config of the problem's workload."""
    return workload(task.problem.workload).compile(task, config)


def assembly(task: Task[Any], config: Config) -> list[str]:
    """In such a process: the assembly of the config's kernels, for NVIDIA's machines."""
    launches = workload(task.problem.workload).kernels.offline(task, config)  # type: ignore[attr-defined]
    return [launch.compile().asm["ptx"] for launch in launches]


def compile_crowd() -> list[Compiled]:
    """What crowds a rank in the check's bursts."""
    return compile_all([Launch(occupying_kernel, 1, {"nanoseconds": 300_000}, {"num_warps": 32})])


def call_for(machine: Machine, function: Any, *arguments: Any) -> Any:
    """In such a process: the machine is the target from now on."""
    compile_offline_for(machine)
    return function(*arguments)


class Compilers:
    """Two processes for all targets, forked with torch and Triton imported: to start one takes as long as to compile a
    small kernel.
    """

    def __init__(self) -> None:
        self._pool = Pool(2, compile_offline_for, H100, imports=IMPORTS)

    def submit(self, machine: Machine, function: Any, *arguments: Any) -> Future[Any]:
        """Call a module's function in a process that compiles for the machine."""
        return self._pool.submit(DEADLINE, call_for, machine, function, *arguments)

    def compiled(self, machine: Machine, jobs: Iterable[tuple[Any, Config]]) -> Iterator[tuple[Config, list[Compiled]]]:
        """The kernels of each problem's config, in order."""
        futures = [
            (config, self.submit(machine, compile_one, Task(problem, machine), config)) for problem, config in jobs
        ]
        for config, future in futures:
            kernels = future.result()
            assert kernels, config
            yield config, kernels

    def close(self) -> None:
        self._pool.close()
