"""Launching a grouped GEMM: its operands, its part of a kernel's arguments, and the launch of one alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autotune.dtypes import SCALES
from autotune.kernels.gemm.problem import scale_shapes
from autotune.kernels.gemm.specialized import SpecializedTile
from autotune.kernels.gemm.tile import PROMOTED
from autotune.kernels.launching.gemm import GemmTensors, halves_constant
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.specialized import OPTIONS, described, specialized
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate
from autotune.kernels.moe import grouped_gemm as device
from autotune.kernels.moe.grouped_space import GroupedTile
from autotune.kernels.moe.problem import GroupedProblem
from autotune.kernels.primitives import gated
from autotune.task import Task

EPILOGUES = {"none": gated.PLAIN.value, "swiglu": gated.SWIGLU.value, "swiglu_oai": gated.SWIGLU_OAI.value}
"""The kernel's constants by the problem's word for what follows a grouped GEMM."""


@dataclass(frozen=True)
class GroupedOperands:
    """Operands of one grouped GEMM: ``rows`` of A, of L experts' B [L, K, N], contiguous, or its transpose is; and what
    follows it.
    """

    a: torch.Tensor
    """[rows, K], or what ``gather`` names rows of."""
    b: torch.Tensor
    offsets: torch.Tensor
    """int32 [L + 1]: of each expert's rows; the last is the number of all, ``rows`` at most."""
    rows: int
    gather: torch.Tensor | None = None
    """int32 [rows]: divided by ``per`` the row of A."""
    per: int = 1
    scale_a: torch.Tensor | None = None
    """fp32 [rows, 1], or [rows, K / 128]."""
    scale_b: torch.Tensor | None = None
    """fp32 [L, 1, N], or [L, K / 128, N / 128], stored as B is."""
    scales: str = "none"
    """The kind: ``row``, ``block`` or ``none``."""
    fast_accum: bool = False
    """fp8: sums are left to the tensor cores."""
    bias: torch.Tensor | None = None
    """[L, N], of C's type, or of that before the epilogue."""
    epilogue: str = "none"
    """With one C is [rows, N / 2], and B's columns are gate and up."""
    halves: bool = False
    """Gate and up are halves of the columns, not in turns."""

    @classmethod
    def of(cls, problem: Any, rows: torch.Tensor, scale_rows: torch.Tensor | None, tensors: Any) -> GroupedOperands:
        """Laid-out rows of A, and the others from a call's ``tensors``; ``problem`` is a ``GroupedProblem``."""
        return cls(
            rows, tensors.b, tensors.offsets, len(rows), scale_a=scale_rows, scale_b=tensors.scale_b,
            scales=problem.scales, fast_accum=problem.fast_accum, bias=tensors.bias, epilogue=problem.epilogue,
            halves=problem.halves,
        )  # fmt: skip

    @property
    def transposed(self) -> bool:
        """True if B is stored [L, N, K]."""
        return self.b.stride(1) < self.b.stride(2)


def row_scales(problem: GroupedProblem, rows: int, own: Allocate) -> torch.Tensor | None:
    """The scales of so many rows of A, None without."""
    return own((rows, problem.row_scales), torch.float32) if problem.scaled else None


def expert_tensors(problem: Any, own: Allocate) -> dict[str, Any]:
    """The experts' ``b``, ``scale_b`` and ``bias`` of a ``GroupedProblem``, as ``GroupedOperands`` has them."""
    local, (_, columns, depth) = problem.local_experts, problem.gemm
    dtype, result = OPERAND_DTYPES[problem.dtype], TORCH_DTYPES[problem.result_dtype]
    transposed = problem.b_order == "nk"
    b = own((local, columns, depth) if transposed else (local, depth, columns), dtype)
    scale_b = None
    if problem.scaled:
        _, (along_k, along_n) = scale_shapes(problem.scales, (1, depth), (depth, columns))
        scale_b = own((local, along_n, along_k), torch.float32).transpose(1, 2)
    return {
        "b": b.transpose(1, 2) if transposed else b, "scale_b": scale_b,
        "bias": own((local, columns), result) if problem.bias else None,
    }  # fmt: skip


def expert_b(tile: GroupedTile, operands: GroupedOperands) -> Any:
    """B as it is stored, by expert; its halves one behind the other where a tile has columns of both."""
    if not operands.transposed:
        return tile.operand(operands.b, (1, tile.block_k, tile.block_n))
    stored = operands.b.transpose(1, 2)
    if operands.halves and tile.tma:
        return tile.operand(stored.unflatten(1, (2, -1)), (1, 2, tile.block_n // 2, tile.block_k))
    return tile.operand(stored, (1, tile.block_n, tile.block_k))


def whole_tiles(tile: GroupedTile, operands: GroupedOperands, c: torch.Tensor) -> Any:
    """A descriptor of C for tiles that leave by TMA, or None: gathered rows of A take the registers for it.

    Laid out, fp8 tiles of 128x128 took 5 to 6 % less time so, of bf16 from 3 % more to 3 % less (H200, 2026-11-24).
    """
    if not tile.tma or operands.gather is not None or tile.swap_ab:
        return None
    halved = tile.block_n >= 64 or operands.epilogue != "none"
    return tile.operand(c, (tile.block_m, tile.block_n // 2 if halved else tile.block_n))


def grouped_arguments(tile: GroupedTile, operands: GroupedOperands) -> dict[str, Any]:
    """Arguments that every kernel with a grouped GEMM has, but for its result."""
    experts, depth, columns = operands.b.shape
    a_tma = tile.tma and operands.gather is None
    whole = operands.b.element_size() > 1 or operands.fast_accum or operands.scales == "block"
    promote = None if whole else min(PROMOTED, tile.block_k)
    parts = not tile.swap_ab and tile.rows_in_turn(operands.scales, promote, halves=operands.halves)
    return {
        "a": tile.a_operand(operands.a, in_two_parts=parts) if a_tma else operands.a, "gather": operands.gather,
        "b": expert_b(tile, operands), "scale_a": operands.scale_a, "scale_b": operands.scale_b,
        "bias": operands.bias,
        "offsets": operands.offsets, "N": columns, "K": depth,
        **{f"stride_b{name}": operands.b.stride(place) for place, name in enumerate("ekn")},
        "group_m": tile.group_m, "EXPERTS": experts, "PER": operands.per,
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "A_TMA": a_tma, "TMA": tile.tma,
        "B_TRANSPOSED": operands.transposed, "HALVES": halves_constant(operands.halves, columns),
        "EVEN_K": depth % tile.block_k == 0, "SWAP": tile.swap_ab, "PROMOTE": promote, "PARTS": parts,
        "SCALES": SCALES.index(operands.scales), "EPILOGUE": EPILOGUES[operands.epilogue],
    }  # fmt: skip


def grouped_gemm(tile: GroupedTile, operands: GroupedOperands, c: torch.Tensor, units: int) -> Launch:
    """C [rows, N] = each row of A times its expert's B, + bias, and the epilogue. Rows of C beyond the last expert's
    are left alone.
    """
    experts, _, columns = operands.b.shape
    arguments = {**grouped_arguments(tile, operands), "c": c, "whole": whole_tiles(tile, operands, c)}
    programs = tile.grouped_programs(operands.rows, experts, columns, units)
    return Launch(device.grouped_gemm_kernel, programs, arguments, tile.options)


def gemm_apart(task: Task[Any], mode: Knobs, operands: GroupedOperands, c: torch.Tensor) -> Launch:
    """``grouped_gemm`` of laid-out rows by the mode's tile, maybe by warp specialization."""
    if isinstance(mode, SpecializedTile):
        return _specialized(task, mode, operands, c)
    assert isinstance(mode, GroupedTile)
    return grouped_gemm(mode, operands, c, task.machine.compute_units)


def _specialized(task: Task[Any], tile: SpecializedTile, operands: GroupedOperands, c: torch.Tensor) -> Launch:
    from autotune.kernels.moe.specialized_kernel import specialized_grouped_kernel  # Gluon, which few need

    experts, depth, columns = operands.b.shape
    b = operands.b.transpose(1, 2).flatten(0, 1).t() if operands.transposed else operands.b.flatten(0, 1)
    tensors = GemmTensors(operands.a, b, c, operands.bias, operands.scale_a, operands.scale_b)
    arguments = specialized(task, tile, tensors) | {
        "whole": described(c, (tile.rows, tile.stored(task))), "scale_a": operands.scale_a,
        "offsets": operands.offsets, "rows": operands.rows, "N": columns, "K": depth, "EXPERTS": experts,
        "EPILOGUE": EPILOGUES[operands.epilogue],
    }  # fmt: skip
    return Launch(specialized_grouped_kernel, task.machine.compute_units, arguments, OPTIONS)
