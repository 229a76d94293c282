"""Shared by the ways of all-gather + GEMM: tensors, those that peers read, and arguments of kernels that move A."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.all_gather_gemm.library_modes import CustomCollective
from autotune.kernels.all_gather_gemm.modes import Staged
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.gemm.problem import blocks
from autotune.kernels.launching.contract import Call, MaybeS
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.way import M, Way

GatherCall = Call[AllGatherGemm, M, GemmTensors, MaybeS]

MOST_SPLIT_ROW = 64
"""Elements: a row whose largest power-of-two factor is at least this is moved in such pieces, another one whole."""


@dataclass(frozen=True)
class GatherTensors(GemmTensors):
    """Tensors with the gathered A, [m, k], as a result."""

    gathered: torch.Tensor | None = None


@dataclass(frozen=True)
class QuantisedTensors(GemmTensors):
    """Tensors with the scales of C in fp8, fp32 [m, columns / 128]."""

    c_scales: torch.Tensor | None = None


def returned_of(tensors: GemmTensors) -> torch.Tensor | None:
    """The tensor for the gathered A; None where it is no result."""
    return tensors.gathered if isinstance(tensors, GatherTensors) else None


def scales_of_c(tensors: GemmTensors) -> torch.Tensor | None:
    """The tensor for the scales of C; None where C has none."""
    return tensors.c_scales if isinstance(tensors, QuantisedTensors) else None


class GatherWay(Way[AllGatherGemm, M, GemmTensors, MaybeS]):
    def peers_read(self, mode: M) -> bool:
        """True if peers read our shard where it lies: at the same place on the symmetric heap on every rank."""
        return False

    def read_by_peers(self, problem: AllGatherGemm, mode: M) -> tuple[int, int] | None:
        """The shard, if peers pull or copy it, and whenever the caller writes it in place."""
        return problem.shard if problem.in_place or self.peers_read(mode) else None

    def also_read_by_peers(self, problem: AllGatherGemm, mode: M) -> tuple[str, ...]:
        """The scales of the shard, if peers pull or copy it."""
        return ("scale_a",) if problem.gathers_scales and self.peers_read(mode) else ()


def _hint(problem: AllGatherGemm) -> int:
    """Alignment of every row of a shard in bytes, at most 16: a hint for Iris's translation."""
    return math.gcd(problem.shard[1] * problem.element_size, 16)


def of_shard(call: GatherCall[Any, Any]) -> dict[str, Any]:
    """Arguments of every kernel that moves A and its scales; None where these stay where they are."""
    problem, (rows, width) = call.problem, call.problem.shard
    moving, scaled = problem.gathers_scales, width if problem.scales == "block" else 1
    return {
        "shard": call.tensors.a, "M": problem.m, "K": problem.k, "shard_rows": rows, "width": width,
        "ROWS": problem.rows_layout, "HINT": _hint(problem), "scale_shard": call.tensors.scale_a if moving else None,
        "scale_columns": blocks(scaled) if moving else None, "scale_pitch": problem.scale_columns if moving else None,
    }  # fmt: skip


def of_step(problem: AllGatherGemm, mode: CustomCollective | Staged, chunks: int = 1) -> dict[str, Any]:
    """A communicating program's steps through a shard: the block that it moves at once, see ``transfer``."""
    width = problem.shard[1]
    if problem.rows_layout:
        width //= chunks
    elements = mode.copy_kib * 1024 // problem.element_size
    whole = width & -width  # the largest power of two that divides it
    columns = min(elements, whole if whole >= MOST_SPLIT_ROW else 1 << max(4, (width - 1).bit_length()))
    return {
        "STEP_ROWS": elements // columns, "STEP_COLUMNS": columns, "ROTATE": mode.peer_order == "rotate",
        "VECTOR": max(1, _hint(problem) // problem.element_size),
    }  # fmt: skip
