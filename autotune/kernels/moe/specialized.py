"""Launching the grouped GEMM of laid-out rows, by warp specialization or not."""

from __future__ import annotations

from typing import Any

import torch

from autotune.kernels.gemm.specialized import SpecializedTile
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.specialized import OPTIONS, described, specialized
from autotune.kernels.moe.grouped_launch import EPILOGUES, GroupedOperands, grouped_gemm
from autotune.kernels.moe.grouped_space import GroupedTile
from autotune.task import Task


def gemm_apart(
    task: Task[Any], mode: Knobs, operands: GroupedOperands, c: torch.Tensor, *, epilogue: str = "none",
    halves: bool = False,
) -> Launch:  # fmt: skip
    """``grouped_gemm`` of the problem by the mode's tile."""
    if isinstance(mode, SpecializedTile):
        return _specialized(task, mode, operands, c, epilogue)
    assert isinstance(mode, GroupedTile)
    return grouped_gemm(
        mode, operands, c, task.problem.dtype, task.machine.compute_units, epilogue=epilogue, halves=halves,
        fast_accum=task.problem.fast_accum,
    )  # fmt: skip


def _specialized(
    task: Task[Any], tile: SpecializedTile, operands: GroupedOperands, c: torch.Tensor, epilogue: str
) -> Launch:  # fmt: skip
    from autotune.kernels.moe.specialized_kernel import specialized_grouped_kernel  # Gluon, which few need

    experts, depth, columns = operands.b.shape
    b = operands.b.transpose(1, 2).flatten(0, 1).t() if operands.transposed else operands.b.flatten(0, 1)
    tensors = GemmTensors(operands.a, b, c, operands.bias, operands.scale_a, operands.scale_b)
    arguments = specialized(task, tile, tensors) | {
        "whole": described(c, (tile.rows, tile.stored(task))), "scale_a": operands.scale_a,
        "offsets": operands.offsets, "rows": operands.rows, "N": columns, "K": depth, "EXPERTS": experts,
        "EPILOGUE": EPILOGUES[epilogue],
    }  # fmt: skip
    return Launch(specialized_grouped_kernel, task.machine.compute_units, arguments, OPTIONS)
