"""The tile of our GEMM: its dimensions, and its part of a kernel's arguments. Read without torch and Triton, too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.dtypes import FP8, SCALE_BLOCK, SCALES, WGMMA_ROWS
from autotune.kernels.gemm.problem import GemmProblem
from autotune.kernels.launching.knobs import LadderKnobs
from autotune.search_spaces.joint import number, word
from autotune.task import Task

if TYPE_CHECKING:
    import torch

    from autotune.kernels.launching.gemm import GemmTensors

PROMOTED = 128
"""Most fp8 products, along K, that sm_90's tensor cores add up before fp32 registers take the sum over."""

LOADS = ("pointer", "tma", "specialized")
"""Kernels get the place, see ``primitives/known.py``."""

NUM_STAGES: Any = number(1, 2, 3, 4, 5, 6, 8, help="depth of the software pipeline", say="{num_stages:pipeline stage}")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Size and order of a GEMM's tiles."""

    block_m: int = number(16, 32, 64, 128, 256, help="rows of an output tile", say="tile {block_m}×{block_n}×{block_k}")
    block_n: int = number(32, 64, 128, 256, help="columns of an output tile", say="")
    block_k: int = number(32, 64, 128, 256, 512, help="depth of one step of the dot product", say="")
    group_m: int = number(1, 2, 4, 8, 16, help="swizzle: rows of tiles walked together, for the L2",
                          say={1: "", ...: "swizzled by {group_m} rows of tiles"})  # fmt: skip

    def tiles(self, rows: int, columns: int) -> int:
        return math.ceil(rows / self.block_m) * math.ceil(columns / self.block_n)


@dataclass(frozen=True, kw_only=True)
class Tile(Blocks, LadderKnobs):
    """Tile, pipeline and operands of our GEMM: dimensions of every mode that has one."""

    num_warps: int = number(4, 8, help="warps of a GEMM program", say="{num_warps:warp}")
    num_stages: int = NUM_STAGES
    loads: str = word(*LOADS, help="by pointers, or by TMA; specialized: TMA loads by warps of their own",
                      say={"pointer": "pointer loads", "tma": "TMA loads",
                           "specialized": "TMA loads by warps of their own"})  # fmt: skip

    @property
    def tma(self) -> bool:
        """True if operands are loaded, and C stored, through tensor descriptors."""
        return self.loads != "pointer"

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}

    def operand(self, tensor: torch.Tensor, block: tuple[int, ...]) -> Any:
        """A descriptor where the config loads by TMA, else the tensor."""
        if not self.tma:
            return tensor
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))

    def a_operand(self, a: torch.Tensor, *, in_two_parts: bool = False) -> Any:
        """A, or an inbox that stands in for it: row-major."""
        return self.operand(a, (self.block_m // (1 + in_two_parts), self.block_k))

    def in_two_parts(self, task: Task[GemmProblem]) -> bool:
        """True if the upper and the lower rows of a tile are multiplied in turn."""
        return self.rows_in_turn(task.problem.scales, self.promoted(task), halves=task.problem.halves)

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

    def c_operand(self, problem: GemmProblem, c: torch.Tensor) -> Any:
        """C [rows, columns], or by shards of its rows, [shards, rows, columns]; stored as ``store_tile`` does."""
        columns = self.block_n // 2 if self.block_n >= 64 or problem.gated else self.block_n
        return self.operand(c, (*[1] * (c.dim() - 2), self.block_m, columns))

    def common(self, task: Task[GemmProblem], tensors: GemmTensors) -> dict[str, Any]:
        """Arguments that every GEMM kernel has."""
        problem = task.problem
        b = tensors.b
        return {
            "b": self.b_operand(problem, b),
            "c": self.c_operand(problem, tensors.c),
            "bias": tensors.bias if tensors.bias is not None else tensors.c, "BIAS": tensors.bias is not None,
            "stride_bk": b.stride(0), "stride_bn": b.stride(1), "group_m": self.group_m,
            "BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k,
            "TMA": LOADS.index(self.loads), "B_TRANSPOSED": problem.b_order == "nk",
            "EVEN_K": problem.gemm[2] % self.block_k == 0,
            "scale_a": tensors.scale_a, "scale_b": tensors.scale_b, "SCALES": SCALES.index(problem.scales),
            "PROMOTE": self.promoted(task),
        }  # fmt: skip

    def promoted(self, task: Task[GemmProblem]) -> int | None:
        """Products along K after which a dot product's sum is added up in fp32 registers; None: as Triton does, which
        is exact on AMD.
        """
        problem = task.problem
        whole = (
            problem.dtype not in FP8 or problem.fast_accum or problem.scales == "block" or task.machine.kind == "hip"
        )
        return None if whole else min(PROMOTED, self.block_k)


@dataclass(frozen=True, kw_only=True)
class GemmTile(Tile):
    """The tile of a GEMM whose depth may be split."""

    split_k: int = number(1, 2, 4, 8, 16, help="programs that share the depth of a tile",
                          say={1: "", ...: "split-K by {split_k}"})  # fmt: skip
