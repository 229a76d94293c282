"""A user's workload whose configs misbehave on demand: ``group_m`` says how, on rank 1."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from autotune.config import Config
from autotune.errors import HeapExhausted
from autotune.kernels.all_gather_gemm import launch
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmOperation, AllGatherGemmWorkload
from autotune.workloads.workload import Run

GOOD, KILLED, CORRUPT, HANGS, BUG = 1, 2, 4, 8, 16
"""Values of ``group_m``."""


class MisbehavingOperation(AllGatherGemmOperation):
    """All-gather + GEMM with planted faults."""

    def prepare(self, config: Config) -> Run:
        """As the config says."""
        how = config.get("group_m", GOOD)
        if config.get("num_stages") == 6:
            raise HeapExhausted("planted")
        run = super().prepare(config)
        if config.get("num_stages") == 5 and self.scratch is not None:
            # Nobody will ever have signalled so often, and nobody waits for long.
            self.scratch.state[0] = 1000 + self._heap.rank
            run = self._bind_impatiently(config)

        def misbehave() -> None:
            run()
            if self._heap.rank != 1 or how == GOOD:
                return
            if how == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            if how == HANGS:
                time.sleep(1000)
            if how == BUG:
                raise ZeroDivisionError("planted")
            self._tensors.c[0, 0] += 100.0

        return misbehave

    def _bind_impatiently(self, config: Config) -> Run:
        return launch.bind(self._problem, config, self._machine, self._tensors, self.scratch, self._heap, spin_limit=50)


class MisbehavingWorkload(AllGatherGemmWorkload):
    """The plug-in, under a name of its own."""

    name = "misbehaving"

    def operation(self, *arguments: Any) -> MisbehavingOperation:
        """Set up on this rank."""
        return MisbehavingOperation(*arguments)


WORKLOAD = MisbehavingWorkload()
