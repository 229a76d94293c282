"""Workloads on a workspace that has been called two billion times: its counters are about to wrap around."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.config import Config
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.primitives.counters import EPOCH_SHIFT
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmOperation, AllGatherGemmWorkload
from autotune.workloads.built_in.flash_decode import FlashDecodeOperation, FlashDecodeWorkload
from autotune.workloads.built_in.gemm_reduce_scatter import GemmReduceScatterOperation, GemmReduceScatterWorkload
from autotune.workloads.interface import Run

CALLS_LEFT = 4
"""Calls before the epoch, as an int32, becomes negative."""


def wrapped(value: int) -> int:
    """As an int32 holds it."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


class AgedOperation(AllGatherGemmOperation):
    """Every counter as the calls so far would have left it."""

    def prepare(self, config: Config) -> Run:
        """Age the scratch once it is there."""
        run = super().prepare(config)
        if self.scratch is not None:
            epoch = (1 << 31) - CALLS_LEFT
            parts = int(config.get("comm_programs", 1))
            # Each communicating program of pull_staged says that it has read; in the other modes one does for all.
            done = epoch * parts if config["mode"] == "pull_staged" else epoch
            self.scratch.epoch_counter.fill_(epoch << EPOCH_SHIFT.value)
            self.scratch.ready.fill_(epoch)
            self.scratch.done.fill_(wrapped(done))
            if config["mode"] != "pull":
                self.scratch.arrivals.fill_(wrapped(epoch * parts))
        return run


class AgedScatterOperation(GemmReduceScatterOperation):
    """Every counter grows by one a call."""

    def prepare(self, config: Config) -> Run:
        """Age the scratch once it is there."""
        run = super().prepare(config)
        if self.scratch is not None:
            epoch = (1 << 31) - CALLS_LEFT
            self.scratch.epoch_counter.fill_(epoch << EPOCH_SHIFT.value)
            counters = (getattr(self.scratch, name, None) for name in ("ready", "done", "arrivals"))
            for each in filter(lambda found: found is not None, counters):  # those that the mode has
                each.fill_(epoch)
        return run


class AgedFlashDecodeOperation(FlashDecodeOperation):
    """Every counter as the calls so far would have left it."""

    def prepare(self, config: Config) -> Run:
        """Age the scratch once it is there."""
        run = super().prepare(config)
        epoch = (1 << 31) - CALLS_LEFT
        self.scratch.epoch_counter.fill_(epoch << EPOCH_SHIFT.value)
        self.scratch.arrivals.fill_(epoch)
        self.scratch.returns.fill_(epoch)
        return run


@dataclass(frozen=True, kw_only=True)
class AgedGatherProblem(AllGatherGemm):
    workload = "aged_gather"


@dataclass(frozen=True, kw_only=True)
class AgedScatterProblem(GemmReduceScatter):
    workload = "aged_scatter"


@dataclass(frozen=True, kw_only=True)
class AgedDecodeProblem(FlashDecode):
    workload = "aged_decode"


class Gather(AllGatherGemmWorkload):
    name, problem_type, operation_type = "aged_gather", AgedGatherProblem, AgedOperation


class Scatter(GemmReduceScatterWorkload):
    name, problem_type, operation_type = "aged_scatter", AgedScatterProblem, AgedScatterOperation


class Decode(FlashDecodeWorkload):
    name, problem_type, operation_type = "aged_decode", AgedDecodeProblem, AgedFlashDecodeOperation
