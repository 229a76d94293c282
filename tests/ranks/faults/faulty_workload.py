"""A user's workload whose configs carry a fault: what it is, in which phase of the evaluation, and on which rank.

Config fields: ``fault``, a case of ``strike``; ``phase``, one of compile (on GPUs only: nothing is compiled elsewhere),
check, measure and recheck; ``victim``, a rank or ``EVERY_RANK``. A fault of phase start has no config to carry it: the
setting ``FAULT_AT_START`` says ``fault, victim``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from autotune.config import Config
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.plan import CompileError
from autotune.task import Task
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmOperation, AllGatherGemmWorkload
from autotune.workloads.interface import Run

PHASES = ("compile", "check", "measure", "recheck")

EVERY_RANK = -1

FAULT_AT_START = "FAULT_AT_START"


@triton.jit
def spin_kernel(flag):
    seen = tl.load(flag, volatile=True)
    while seen == 0:
        seen = tl.load(flag, volatile=True)
    tl.store(flag, seen + 1)


@triton.jit
def stray_kernel(address):
    tl.store(address.to(tl.int64).to(tl.pointer_type(tl.int32)), 1)


@dataclass(frozen=True, kw_only=True)
class Faulty(AllGatherGemm):
    workload = "faulty"


class FaultyOperation(AllGatherGemmOperation):
    config = Config({})
    refreshes = calls = 0
    says_it_timed_out = False

    def refresh(self, seed: int) -> None:
        """Once for the check, once more for the recheck."""
        super().refresh(seed)
        self.refreshes += 1

    def prepare(self, config: Config) -> Run:
        self.config, self.refreshes, self.calls, self.says_it_timed_out = config, 0, 0, False
        run = super().prepare(sound(config))

        def faulty() -> None:
            run()
            if self.stricken:
                strike(str(self.config["fault"]), self)
            self.calls += 1

        return faulty

    @property
    def stricken(self) -> bool:
        """True from the fault's phase on, on the rank that it strikes."""
        now = "recheck" if self.refreshes > 1 else "measure" if self.calls else "check"
        return victimised(self.config) and PHASES.index(now) >= PHASES.index(str(self.config["phase"]))

    def timed_out(self) -> bool:
        return super().timed_out() or self.says_it_timed_out


def victimised(config: Config) -> bool:
    return "fault" in config and config["victim"] in (EVERY_RANK, dist.get_rank())


def sound(config: Config) -> Config:
    return Config({name: value for name, value in config.items() if name not in ("fault", "phase", "victim")})


def strike(fault: str, operation: Any = None) -> None:
    """From the check on the operation has memory, which some faults need."""
    match fault:
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits":
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)
        case "hangs on the host":
            time.sleep(1000)
        case "hangs in a kernel":
            device = "cuda" if torch.cuda.is_available() else "cpu"
            spin_kernel[(1,)](torch.zeros(1, dtype=torch.int32, device=device))
            torch.cuda.synchronize()
        case "hangs with a child":
            child = subprocess.Popen(["sleep", "1000"])
            print(f"child {child.pid}", file=sys.stderr, flush=True)
            time.sleep(1000)
        case "raises":
            raise ZeroDivisionError("planted")
        case "does not compile":
            raise CompileError("planted: ptxas said no")
        case "exhausts the heap":
            operation._heap.allocate((operation._heap.size,), torch.uint8)
        case "exhausts the host":
            torch.empty(1 << 60, dtype=torch.uint8)
        case "exhausts the device":
            hoard = []
            while True:
                hoard.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
        case "loses its device":
            if not torch.cuda.is_available():
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nplanted")
            stray_kernel[(1,)](1 << 20)
            torch.cuda.synchronize()
        case "spoils the output":
            operation._tensors.c[0, 0] += 100.0
        case "leaves NaN":
            operation._tensors.c[3, 5] = float("nan")
        case "corrupts memory":
            operation._tensors.a.add_(1.0)  # every rank's next result is wrong
        case "loses the bias":
            operation._tensors.c.sub_(operation._tensors.bias)
        case "loses the last of K":
            a, b = operation._tensors.a, operation._tensors.b
            own = operation._tensors.c[dist.get_rank() * len(a) :][: len(a)]
            own.sub_(a[:, -1:] @ b[-1:])
        case "times out":
            operation.says_it_timed_out = True
        case _:
            raise AssertionError(f"no such fault: {fault}")


class FaultyWorkload(AllGatherGemmWorkload):
    name, problem_type, operation_type = "faulty", Faulty, FaultyOperation

    def operation(self, *arguments: Any) -> Any:
        fault, _, victim = os.environ.get(FAULT_AT_START, "").partition(", ")
        operation: Any = super().operation(*arguments)
        if fault and int(victim) in (EVERY_RANK, dist.get_rank()):
            strike(fault, operation)
        return operation

    def compile(self, task: Task[Any], config: Config) -> Any:
        if config.get("phase") == "compile" and victimised(config):
            strike(str(config["fault"]))
        return super().compile(task, sound(config))

    def tolerance_of(self, task: Task[Any], config: Config) -> Any:
        return super().tolerance_of(task, sound(config))


WORKLOAD = FaultyWorkload()
