"""Workloads on a workspace that has been called two billion times: its counters are about to wrap around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.config import Config
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.primitives.counters import EPOCH_SHIFT
from autotune.workloads.built_in.all_gather_gemm import AllGatherGemmWorkload
from autotune.workloads.built_in.flash_decode import FlashDecodeWorkload
from autotune.workloads.built_in.gemm_reduce_scatter import GemmReduceScatterWorkload
from autotune.workloads.interface import Run

CALLS_LEFT = 4
"""Calls before the epoch, as an int32, becomes negative."""


class Aged:
    """Every counter of an operation's scratch as the calls so far would have left it."""

    def prepare(self, config: Config) -> Run:
        run: Run = super().prepare(config)  # type: ignore[misc]
        scratch: Any = self.scratch  # type: ignore[attr-defined]
        epoch, parts = (1 << 31) - CALLS_LEFT, int(config.get("comm_programs", 1))
        # Each communicating program of pull_staged says that it has read; in the other modes one does for all.
        grown = {
            "epoch_counter": epoch << EPOCH_SHIFT.value,
            "ready": epoch,
            "returns": epoch,
            "arrivals": epoch * parts,
        }
        grown["done"] = epoch * parts if config["mode"] == "pull_staged" else epoch
        for name, value in grown.items():
            counter = getattr(scratch, name, None)
            if counter is not None:  # the mode has it
                bits = 8 * counter.element_size()
                counter.fill_((value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)))
        return run


@dataclass(frozen=True, kw_only=True)
class GatherProblem(AllGatherGemm):
    workload = "aged_gather"


@dataclass(frozen=True, kw_only=True)
class ScatterProblem(GemmReduceScatter):
    workload = "aged_scatter"


@dataclass(frozen=True, kw_only=True)
class DecodeProblem(FlashDecode):
    workload = "aged_decode"


class Gather(AllGatherGemmWorkload):
    name, problem_type = "aged_gather", GatherProblem
    operation_type = type("Operation", (Aged, AllGatherGemmWorkload.operation_type), {})


class Scatter(GemmReduceScatterWorkload):
    name, problem_type = "aged_scatter", ScatterProblem
    operation_type = type("Operation", (Aged, GemmReduceScatterWorkload.operation_type), {})


class Decode(FlashDecodeWorkload):
    name, problem_type = "aged_decode", DecodeProblem
    operation_type = type("Operation", (Aged, FlashDecodeWorkload.operation_type), {})
