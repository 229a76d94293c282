"""A user's workload whose configs carry a ``fault`` of their own: what it is, and on which rank it strikes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import HeapExhausted
from autotune.kernels.launching.plan import CompileError
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmOperation, AllGatherGemmWorkload
from autotune.workloads.workload import Run

VICTIM = 1


class FaultyOperation(AllGatherGemmOperation):
    """All-gather + GEMM with planted faults."""

    fault = ""
    calls = 0

    def prepare(self, config: Config) -> Run:
        """As the config says."""
        self.fault, self.calls = str(config.get("fault", "")), 0
        strikes = self._heap.rank == VICTIM
        if strikes and self.fault == "heap exhausted on one rank":
            raise HeapExhausted("symmetric heap: planted")
        if self.fault == "out of memory":
            raise torch.OutOfMemoryError("CUDA out of memory. planted")
        if self.fault == "does not compile":
            raise CompileError("planted: ptxas said no")
        if strikes and self.fault == "has a child":
            child = subprocess.Popen(["sleep", "1000"])
            print(f"child {child.pid}", file=sys.stderr, flush=True)
        run = super().prepare(config)

        def faulty() -> None:
            self.calls += 1
            run()
            if strikes:
                self._strike()

        return faulty

    def _strike(self) -> None:
        output = self._tensors.c
        if self.fault == "leaves NaN":
            output[3, 5] = float("nan")
        elif self.fault == "wrong when repeated" and self.calls > 2:
            output[0, 0] += 100.0
        elif self.fault == "exits":
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)
        elif self.fault == "has a child":
            time.sleep(1000)
        elif self.fault == "device lost":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nplanted")

    def gave_up(self) -> bool:
        """From the first timed call on, where that is the fault."""
        return super().gave_up() or (self.fault == "gives up when timed" and self.calls > 1)


class FaultyWorkload(AllGatherGemmWorkload):
    """The plug-in, under a name of its own."""

    name = "faulty"

    def operation(self, *arguments: Any) -> FaultyOperation:
        """Set up on this rank."""
        return FaultyOperation(*arguments)


WORKLOAD = FaultyWorkload()
