"""The symmetric heap on GPUs: Iris itself."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autotune.errors import HeapError
from autotune.heap.arena import ALIGNMENT, SymmetricHeap
from autotune.heap.loading import import_iris

ALLOCATORS = {"cuda": "vmem_chunked", "hip": "torch"}
"""Iris's allocator by kind of machine: its IPC-based default does not serve NVIDIA; on AMD the default is the proven one."""


class IrisHeap(SymmetricHeap):
    """One allocation of Iris's heap, handed out by our arena; addresses come from Iris."""

    def __init__(self, size: int, group: dist.ProcessGroup | None = None) -> None:
        """Collective over the default process group, on which Iris starts; ``size`` in bytes. Takes about 1.5 s."""
        iris = import_iris()
        kind = "hip" if torch.version.hip else "cuda"
        size = -(-size // ALIGNMENT) * ALIGNMENT
        try:
            self.context = iris.iris(heap_size=size + (64 << 20), allocator_type=ALLOCATORS[kind])
            arena = self.context.empty(size, dtype=torch.uint8)
        except (RuntimeError, ValueError, OSError) as error:
            raise HeapError(f"Iris could not set up a symmetric heap of {size} bytes: {error}") from error
        self._view_of = iris.tensor_from_ptr
        super().__init__(arena, [int(base) for base in self.context.get_heap_bases().tolist()], group)

    def _view(self, address: int, rank: int, like: torch.Tensor) -> torch.Tensor:
        size = like.numel() * like.element_size()
        flat: torch.Tensor = self._view_of(address, size, torch.uint8, self.device)
        return flat.view(like.dtype).view(like.shape)

    def close(self) -> None:
        """Release Iris's memory."""
        self.arena = torch.empty(0, dtype=torch.uint8)
        del self.context
