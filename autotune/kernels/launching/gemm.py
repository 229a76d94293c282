"""Shared by launchers with a GEMM: its operands, its knobs, and its part of a kernel's arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.dtypes import FP8, SCALE_BLOCK, SCALES, WGMMA_ROWS
from autotune.kernels.gemm.problem import GemmProblem, scale_shapes
from autotune.kernels.launching.knobs import LadderKnobs
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate
from autotune.machine import Machine

PROMOTED = 128
"""Most fp8 products, along K, that sm_90's tensor cores add up before fp32 registers take the sum over."""


@dataclass(frozen=True)
class GemmTensors:
    """One rank's operands: ``a`` contiguous, ``b`` in either storage order, ``c`` the output, ``bias`` maybe; of fp8
    the scales, see ``scale_shapes``, ``b``'s stored as ``b`` is.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    bias: torch.Tensor | None = None
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None

    @classmethod
    def allocate(
        cls, problem: GemmProblem, a: torch.Tensor, b_shape: tuple[int, int], c_shape: tuple[int, int],
        allocate: Allocate,
    ) -> GemmTensors:  # fmt: skip
        """Everything beside ``a``, with undefined contents; B's shape is [depth, columns]."""
        result = TORCH_DTYPES[problem.result_dtype]
        scale_a = scale_b = None
        if problem.scaled:
            shapes = scale_shapes(problem.scales, (a.shape[0], a.shape[1]), b_shape)
            scale_a, scale_b = allocate(shapes[0], torch.float32), _stored("nk", shapes[1], torch.float32, allocate)
        return cls(
            a=a,
            b=_stored(problem.b_order, b_shape, OPERAND_DTYPES[problem.b_dtype], allocate),
            c=allocate(c_shape, result),
            bias=allocate((b_shape[1],), result) if problem.bias else None,
            scale_a=scale_a,
            scale_b=scale_b,
        )


@dataclass(frozen=True)
class SummedTensors(GemmTensors):
    """Tensors of a GEMM whose sum over ranks may go onto a residual, of the shape and type of ``c``."""

    residual: torch.Tensor | None = None

    @classmethod
    def of(
        cls, problem: GemmProblem, a: torch.Tensor, b_shape: tuple[int, int], c_shape: tuple[int, int],
        allocate: Allocate,
    ) -> SummedTensors:  # fmt: skip
        """``allocate``, and the residual where the problem has one."""
        gemm = GemmTensors.allocate(problem, a, b_shape, c_shape, allocate)
        return cls(**vars(gemm), residual=allocate(c_shape, gemm.c.dtype) if problem.residual else None)


def _stored(order: str, shape: tuple[int, ...], dtype: torch.dtype, allocate: Allocate) -> torch.Tensor:
    """A tensor of this shape; ``nk``: the transpose of what is stored."""
    return allocate(shape[::-1], dtype).t() if order == "nk" else allocate(shape, dtype)


def wire_dtype(problem: GemmProblem, machine: Machine) -> torch.dtype:
    """The type of parts on their way to those who sum them; fp8 is that of the machine's matrix units."""
    if problem.wire == "auto":
        return TORCH_DTYPES[problem.result_dtype]
    return OPERAND_DTYPES["fp8_fnuz" if machine.arch == "gfx942" else "fp8"]


ROW_ALIGNMENT = 16
"""Bytes: rows that lie apart begin at multiples of this, as descriptors need."""


def halves_constant(halves: bool, columns: int) -> int:
    """The kernels' HALVES, see ``primitives/gated.py``."""
    return math.gcd(columns // 2, 16) if halves else 0


def order_of(b: torch.Tensor) -> str:
    """The problem's word for the storage of B, by the strides."""
    return "nk" if not b.is_contiguous() and b.stride(0) < b.stride(1) else "kn"


def readable(name: str, operand: torch.Tensor, *, apart: tuple[str, ...] = ("b",)) -> torch.Tensor:
    """A or B as a GEMM reads it: contiguous, B maybe its transpose; of those named in ``apart`` rows may also lie
    apart, as in a slice of a matrix. Any other is copied. The bias is contiguous.
    """
    if name == "bias":
        return operand.contiguous()
    if name not in ("a", "b"):
        return operand
    transposed = name == "b" and order_of(operand) == "nk"
    rows = operand.t() if transposed else operand
    if rows.is_contiguous() or (name in apart and _rows_lie_apart(rows)):
        return operand
    rows = rows.contiguous()
    return rows.t() if transposed else rows


def _rows_lie_apart(matrix: torch.Tensor) -> bool:
    pitch, within = matrix.stride()
    return within == 1 and pitch >= matrix.shape[1] and pitch * matrix.element_size() % ROW_ALIGNMENT == 0


@dataclass(frozen=True, kw_only=True)
class GemmKnobs(LadderKnobs):
    """The knobs that several GEMM workloads have. A knob that a workload or a mode lacks has no effect as it is here.

    ``block_m`` is 0 where the GEMM is the library's.
    """

    launch: str = "eager"
    block_m: int = 0
    block_n: int = 0
    block_k: int = 0
    group_m: int = 1
    num_warps: int = 0
    num_stages: int = 0
    loads: str = "pointer"
    split_k: int = 1
    schedule: str = "tile"
    transfer_rows: int = 0
    k_chunks: int = 1
    comm_programs: int = 0
    copy_kib: int = 0
    head_start: int = 0
    gemm_streams: int = 1

    @property
    def tma(self) -> bool:
        """True if operands are loaded, and C stored, through tensor descriptors."""
        return self.loads == "tma"

    @property
    def apart(self) -> tuple[str, ...]:
        """The operands whose rows may lie apart, if only the GEMM reads A: its pointers go by A's columns."""
        return ("a", "b") if self.tma or not self.block_m else ("b",)

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}

    def tiles(self, rows: int, columns: int) -> int:
        return math.ceil(rows / self.block_m) * math.ceil(columns / self.block_n)

    def operand(self, tensor: torch.Tensor, block: tuple[int, ...]) -> Any:
        """A descriptor where the config loads by TMA, else the tensor."""
        if not self.tma:
            return tensor
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))

    def a_operand(self, a: torch.Tensor, *, in_two_parts: bool = False) -> Any:
        """A, or an inbox that stands in for it: row-major."""
        return self.operand(a, (self.block_m // (1 + in_two_parts), self.block_k))

    def in_two_parts(self, problem: GemmProblem, machine: Machine) -> bool:
        """True if the upper and the lower rows of a tile are multiplied in turn."""
        return self.rows_in_turn(problem.scales, self.promoted(problem, machine), halves=problem.halves)

    def rows_in_turn(self, scales: str, promoted: int | None, *, halves: bool) -> bool:
        """``in_two_parts`` for any product with these scales, promoted after so many of K; ``halves`` of B make a tile.

        A product that is to be promoted, or scaled by blocks, has registers of its own. As many as the sum's, 128 a
        thread, there are not; with half of them one part is multiplied while another, or another program, adds.
        """
        apart = self.block_n <= SCALE_BLOCK and not halves if scales == "block" else promoted == self.block_k
        fills_registers = self.block_m * self.block_n >= 128 * 32 * self.num_warps
        return self.tma and apart and fills_registers and self.block_m >= 2 * WGMMA_ROWS

    def b_operand(self, problem: GemmProblem, b: torch.Tensor) -> Any:
        """B as it is stored. Where a tile has columns of both halves, these lie one behind the other, or, stored row by
        row, are tiles of their own.
        """
        if problem.b_order == "kn":
            return self.operand(b, (self.block_k, self.block_n // (1 + problem.halves)))
        if problem.halves and self.tma:
            return self.operand(b.t().unflatten(0, (2, -1)), (2, self.block_n // 2, self.block_k))
        return self.operand(b.t(), (self.block_n, self.block_k))

    def common(self, problem: GemmProblem, tensors: GemmTensors, machine: Machine) -> dict[str, Any]:
        """Arguments that every GEMM kernel has."""
        b = tensors.b
        c_columns = self.block_n // 2 if self.block_n >= 64 or problem.gated else self.block_n  # see ``store_tile``
        return {
            "b": self.b_operand(problem, b),
            "c": self.operand(tensors.c, (self.block_m, c_columns)),
            "bias": tensors.bias if tensors.bias is not None else tensors.c, "BIAS": tensors.bias is not None,
            "stride_bk": b.stride(0), "stride_bn": b.stride(1), "group_m": self.group_m,
            "BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k,
            "TMA": self.tma, "B_TRANSPOSED": problem.b_order == "nk", "EVEN_K": problem.gemm[2] % self.block_k == 0,
            "scale_a": tensors.scale_a, "scale_b": tensors.scale_b, "SCALES": SCALES.index(problem.scales),
            "PROMOTE": self.promoted(problem, machine),
        }  # fmt: skip

    def promoted(self, problem: GemmProblem, machine: Machine) -> int | None:
        """Products along K after which a dot product's sum is added up in fp32 registers; None: as Triton does, which
        is exact on AMD.
        """
        whole = problem.dtype not in FP8 or problem.fast_accum or problem.scales == "block" or machine.kind == "hip"
        return None if whole else min(PROMOTED, self.block_k)

    def partials(self, rows: int, columns: int, allocate: Allocate) -> tuple[torch.Tensor, torch.Tensor]:
        """Scratch of ``join_splits`` for a matrix: fp32 partials and int32 tickets; empty where nothing is split."""
        if self.split_k == 1:
            return allocate((0,), torch.float32), allocate((0,), torch.int32)
        tiles = self.tiles(rows, columns)
        partials = allocate((tiles * self.split_k, self.block_m, self.block_n), torch.float32)
        return partials, allocate((tiles,), torch.int32)
