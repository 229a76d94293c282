"""A GEMM's operands, and its part of a config as kernels take it: tile, pipeline, splits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.config import Config
from autotune.kernels.launching.tensors import Allocate
from autotune.machine import Machine


@dataclass(frozen=True)
class GemmTensors:
    """One rank's operands: ``a`` contiguous, ``b`` in either storage order, ``c`` the output, ``bias`` maybe."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True)
class GemmKnobs:
    """Reads a config that has block_m, block_n, block_k, group_m, num_warps, num_stages and loads, maybe split_k."""

    config: Config
    machine: Machine

    @property
    def block_m(self) -> int:
        """Rows of a tile."""
        return self.config.integer("block_m")

    @property
    def block_n(self) -> int:
        """Columns of a tile."""
        return self.config.integer("block_n")

    @property
    def block_k(self) -> int:
        """Depth of one step."""
        return self.config.integer("block_k")

    @property
    def splits(self) -> int:
        """Programs that share a tile's depth."""
        return self.config.integer("split_k") if "split_k" in self.config else 1

    @property
    def tma(self) -> bool:
        """Whether operands are loaded, and C stored, through tensor descriptors."""
        return self.config["loads"] == "tma"

    @property
    def options(self) -> dict[str, int]:
        """What the compiler is told."""
        return {name: self.config.integer(name) for name in ("num_warps", "num_stages")}

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of a matrix."""
        return math.ceil(rows / self.block_m) * math.ceil(columns / self.block_n)

    def operand(self, tensor: torch.Tensor, block: tuple[int, int]) -> Any:
        """A descriptor where the config loads by TMA, else the tensor."""
        if not self.tma:
            return tensor
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))

    def a_operand(self, a: torch.Tensor) -> Any:
        """A, or an inbox that stands in for it: row-major."""
        return self.operand(a, (self.block_m, self.block_k))

    def common(self, b: torch.Tensor, c: torch.Tensor, transposed: bool, depth: int) -> dict[str, Any]:
        """Arguments that every GEMM kernel has. ``b`` is [depth, n], ``transposed`` where its storage is [n, depth]."""
        block = (self.block_n, self.block_k) if transposed else (self.block_k, self.block_n)
        c_columns = self.block_n // 2 if self.block_n >= 64 else self.block_n  # see ``store_tile``
        return {
            "b": self.operand(b.t() if transposed else b, block),
            "c": self.operand(c, (self.block_m, c_columns)),
            "stride_bk": b.stride(0), "stride_bn": b.stride(1), "group_m": self.config.integer("group_m"),
            "BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k,
            "TMA": self.tma, "B_TRANSPOSED": transposed, "EVEN_K": depth % self.block_k == 0,
        }  # fmt: skip

    def partials(self, rows: int, columns: int, allocate: Allocate) -> tuple[torch.Tensor, torch.Tensor]:
        """Scratch of ``join_splits`` for a matrix: fp32 partials and int32 tickets; empty where nothing is split."""
        if self.splits == 1:
            return allocate((0,), torch.float32), allocate((0,), torch.int32)
        tiles = self.tiles(rows, columns)
        partials = allocate((tiles * self.splits, self.block_m, self.block_n), torch.float32)
        return partials, allocate((tiles,), torch.int32)
