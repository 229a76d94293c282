"""All-gather + GEMM in all its modes: operands and results, and the way of each mode."""

from __future__ import annotations

import torch

from autotune.kernels.all_gather_gemm.copy_engine import CopyEngineWay
from autotune.kernels.all_gather_gemm.fused import PullWay, StagedWay
from autotune.kernels.all_gather_gemm.library import BulkSynchronous, CustomCollectiveWay
from autotune.kernels.all_gather_gemm.library_modes import CopyEngine, CustomCollective, Library
from autotune.kernels.all_gather_gemm.modes import MODES, Pull, PullStaged, Push
from autotune.kernels.all_gather_gemm.problem import MOST_WORD_BYTES, AllGatherGemm
from autotune.kernels.all_gather_gemm.space import MOST_ROWS_ACROSS
from autotune.kernels.all_gather_gemm.specialized_modes import WarpSpecialized
from autotune.kernels.all_gather_gemm.warp_specialized import WarpSpecializedWay
from autotune.kernels.all_gather_gemm.way import GatherTensors, QuantisedTensors
from autotune.kernels.gemm.problem import blocks
from autotune.kernels.launching.gemm import GemmTensors, readable
from autotune.kernels.launching.mode import Mode
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate
from autotune.kernels.launching.way import ModeKernels

MOST_CHUNKS = 16
"""The largest value of ``k_chunks``; units have at least 16 rows."""

MOST_TILE_ROWS = 256
"""Rows of the largest tile, which an inbox has to spare for tiles across shards."""


class AllGatherGemmKernels(ModeKernels[AllGatherGemm, GemmTensors]):
    modes = MODES
    ways = {
        Library: BulkSynchronous(), CustomCollective: CustomCollectiveWay(), Pull: PullWay(), PullStaged: StagedWay(),
        Push: StagedWay(), WarpSpecialized: WarpSpecializedWay(), CopyEngine: CopyEngineWay(),
    }  # fmt: skip
    tensors_type = GemmTensors
    results = ("c",)

    def tensors(self, problem: AllGatherGemm, shared: Allocate, own: Allocate) -> GemmTensors:
        """A's shard lies on the heap if the problem says so."""
        a = (shared if problem.in_place else own)(problem.shard, OPERAND_DTYPES[problem.dtype])
        gemm = GemmTensors.allocate(problem, a, (problem.k, problem.n_local), (problem.m, problem.columns), own)
        if problem.quantised:
            c = own(gemm.c.shape, OPERAND_DTYPES[problem.quantised_dtype])
            scales = own((problem.m, blocks(problem.columns)), torch.float32)
            return QuantisedTensors(**{**vars(gemm), "c": c}, c_scales=scales)
        if not problem.gathered:
            return gemm
        return GatherTensors(**vars(gemm), gathered=own((problem.m, problem.k), a.dtype))

    def readable(
        self, problem: AllGatherGemm, knobs: Mode[AllGatherGemm], name: str, operand: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        """A is sent without gaps; but where peers read a copy of it anyway, that is made from A of any strides."""
        copied = name == "a" and not problem.in_place and self.read_by_peers(problem, knobs) is not None
        return operand if copied else readable(name, operand)

    def scratch_bytes(self, problem: AllGatherGemm) -> int:
        """Two inboxes with spare rows, or one and two slots of words, and the counters of the smallest units; with
        scales, theirs and a copy of ours.
        """
        rows, _ = problem.shard
        scales = 3 * problem.m * problem.scale_columns * 4 if problem.gathers_scales else 0
        arrivals = MOST_CHUNKS * problem.world_size * rows * 4 // 16 + 1024
        whole = problem.m * problem.k * problem.element_size
        spare = MOST_TILE_ROWS * problem.k * problem.element_size if problem.m <= MOST_ROWS_ACROSS else 0
        return (3 if whole <= MOST_WORD_BYTES else 2) * whole + spare + scales + arrivals + (64 << 10)


KERNELS = AllGatherGemmKernels()
RETURNING = KERNELS.giving(GatherTensors, "c", "gathered")
QUANTISING = KERNELS.giving(QuantisedTensors, "c", "c_scales")
"""C in fp8, and its scales."""
