"""What the workloads with a GEMM have in common on a rank: a launcher on operands, random inputs, a distance."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.environment import Machine
from autotune.heap.arena import SymmetricHeap
from autotune.workloads.comparison import distance, drawn
from autotune.workloads.scratch import ScratchOperation
from autotune.workloads.workload import Error, Run


class GemmOperation(ScratchOperation):
    """The tensors of one rank, and the config prepared last. A subclass draws the inputs and knows the parts."""

    launcher: ClassVar[Any]
    """The module with ``share_scratch`` and ``bind``."""

    def __init__(self, problem: Any, tensors: Any, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """``tensors`` has ``a``, ``b``, ``c`` and maybe ``bias``; inputs are undefined until ``refresh``."""
        self._problem, self._tensors = problem, tensors
        self._machine, self._spin_limit = machine, spin_limit
        self._reference: torch.Tensor | None = None
        super().__init__(heap)

    def share(self, config: Config) -> Any:
        """Counters and inboxes."""
        return self.launcher.share_scratch(self._problem, config, self._machine, self._heap)

    def bind(self, config: Config) -> Run:
        """On this rank's tensors."""
        run: Run = self.launcher.bind(
            self._problem, config, self._machine, self._tensors, self.scratch, self._heap, self._spin_limit
        )
        return run

    @property
    def wide(self) -> torch.dtype:
        """The type of the reference: fp32, or fp64 for fp32."""
        return torch.float64 if self._problem.dtype == "fp32" else torch.float32

    def draw(self, like: torch.Tensor, seed: int) -> torch.Tensor:
        """Random numbers, the same on every rank for the same seed."""
        return drawn(tuple(like.shape), like.dtype, self._heap.device, seed)

    def error(self) -> Error:
        """Distance of C from the reference."""
        assert self._reference is not None, "refresh comes first"
        return distance(self._tensors.c, self._reference)
