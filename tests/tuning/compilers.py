"""A user's workload whose compilation misbehaves: ``group_m`` says how."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from autotune.config import Config
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.plan import Compiled, CompileError
from autotune.task import Task
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmWorkload


@dataclass(frozen=True, kw_only=True)
class Compiling(AllGatherGemm):
    workload = "compiling"


class CompilingWorkload(AllGatherGemmWorkload):
    """Compiles nothing, quickly."""

    name, problem_type = "compiling", Compiling

    def compile(self, task: Task[Any], config: Config) -> list[Compiled]:
        """1 compiles, 2 does not, 4 takes the process down, 8 needs too much shared memory.

        16 raises what nobody expects, 32 needs more programs resident than there is room for, 64 takes for ever.
        """
        how = config["group_m"]
        if how == 2:
            raise CompileError("planted: no such layout")
        if how == 4:
            os._exit(1)
        if how == 16:
            return [Compiled("kernel", {}["planted"], None, None)]
        if how == 64:
            time.sleep(600)
        if how == 32:
            return [Compiled("kernel", 0, 255, 0, warps=8, resident=task.machine.compute_units + 1)]
        return [Compiled("kernel", 1 << 30 if how == 8 else 1024, None, None)]


WORKLOAD = CompilingWorkload()
