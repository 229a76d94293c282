"""A way with a GEMM that alone reads A."""

from __future__ import annotations

import torch

from autotune.kernels.gemm.tile import GemmTile
from autotune.kernels.launching.contract import MaybeS, P, T
from autotune.kernels.launching.gemm import readable
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.way import M, Way


class GemmWay(Way[P, M, T, MaybeS]):
    def readable(self, problem: P, mode: M, name: str, operand: torch.Tensor) -> torch.Tensor:
        """Our pointers go by A's columns; descriptors and the library take rows that lie apart."""
        knobs: Knobs = mode
        pointers = isinstance(knobs, GemmTile) and not knobs.tma
        return readable(name, operand, apart=("b",) if pointers else ("a", "b"))
