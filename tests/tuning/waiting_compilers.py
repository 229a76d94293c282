"""A user's workload whose compilation takes its time where ``group_m`` is 16."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from autotune.config import Config
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.plan import Compiled
from autotune.machine import Machine
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmWorkload


@dataclass(frozen=True, kw_only=True)
class Waiting(AllGatherGemm):
    workload = "waiting"


class WaitingWorkload(AllGatherGemmWorkload):
    """Compiles nothing."""

    name, problem_type = "waiting", Waiting

    def compile(self, problem: Any, config: Config, machine: Machine) -> list[Compiled]:
        if config["group_m"] == 16:
            time.sleep(600)
        return [Compiled("kernel", 1024, None, None)]


WORKLOAD = WaitingWorkload()
