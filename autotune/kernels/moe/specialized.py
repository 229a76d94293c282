"""Launching the warp-specialized grouped GEMM."""

from __future__ import annotations

import torch

from autotune.dtypes import SCALES
from autotune.kernels.gemm.specialized import SpecializedTile, promotes
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.specialized import OPTIONS, described
from autotune.kernels.moe.grouped_launch import EPILOGUES, GroupedOperands
from autotune.kernels.moe.problem import GroupedProblem
from autotune.task import Task


def specialized_grouped_gemm(
    task: Task[GroupedProblem], tile: SpecializedTile, operands: GroupedOperands, c: torch.Tensor,
    epilogue: str = "none",
) -> Launch:  # fmt: skip
    """``grouped_gemm`` of rows that are not gathered; gate and up lie as halves."""
    from autotune.kernels.moe.specialized_kernel import specialized_grouped_kernel  # Gluon, which few need

    experts, depth, columns = operands.b.shape
    stored = operands.b.transpose(1, 2) if operands.transposed else operands.b
    wide = tile.block_n // 2 if epilogue != "none" else tile.block_n
    box = (wide, tile.block_k) if operands.transposed else (tile.block_k, wide)
    arguments = {
        "a": described(operands.a, (tile.rows, tile.block_k)), "b": described(stored.flatten(0, 1), box),
        "whole": described(c, (tile.rows, tile.stored(task))), "c": c, "scale_a": operands.scale_a,
        "scale_b": operands.scale_b, "bias": operands.bias, "BIAS": operands.bias is not None,
        "offsets": operands.offsets, "rows": operands.rows, "N": columns, "K": depth, "group_m": tile.group_m,
        "EXPERTS": experts, "PARTS": tile.block_m // tile.rows, "TURNS": 2 if tile.consumers == "pingpong" else 1,
        "ROWS": tile.rows, "COLUMNS": wide, "DEPTH": tile.block_k, "STAGES": tile.num_stages,
        "PROMOTE": promotes(task.problem), "B_TRANSPOSED": operands.transposed,
        "SCALES": SCALES.index(operands.scales), "EPILOGUE": EPILOGUES[epilogue],
    }  # fmt: skip
    return Launch(specialized_grouped_kernel, task.machine.compute_units, arguments, OPTIONS)
