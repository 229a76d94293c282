"""The symmetric heap on GPUs: Iris itself."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

from autotune.errors import HeapError
from autotune.heap.arena import SymmetricHeap
from autotune.heap.loading import import_iris

ALLOCATORS = {"cuda": "vmem_chunked", "hip": "torch"}
"""Iris's allocator by kind of machine: the default does not work on NVIDIA, and is the proven one on AMD."""


SMALLEST = 256 << 20
"""Bytes; one chunk of ``vmem_chunked``, which refuses smaller heaps."""


class IrisHeap(SymmetricHeap):
    """One allocation on Iris's heap, divided by our arena; addresses come from Iris."""

    def __init__(self, size: int, group: dist.ProcessGroup | None = None) -> None:
        """Collective over the default process group, which Iris uses; ``size`` is a minimum. Takes about 1 s.

        The heap is that of the ranks of ``group``: Iris maps those of all ranks, and ours are picked out. So the other
        ranks set one up at the same time, for a group of their own.
        """
        iris = import_iris()
        kind = "hip" if torch.version.hip else "cuda"
        # Iris rounds an allocation up to a power of two in any case; so we may as well have all of it.
        size = 1 << (max(size, SMALLEST) - 1).bit_length()
        try:
            self.context = iris.iris(heap_size=size, allocator_type=ALLOCATORS[kind])
            arena = self.context.empty(size, dtype=torch.uint8)
        except (RuntimeError, ValueError, OSError) as error:
            raise HeapError(f"Iris could not set up a symmetric heap of {size} bytes: {error}") from error
        # Iris keeps the last error of its attempts to reach a peer in that error's own frame: a cycle, which would hold
        # the callers' group, with its threads and sockets, until the collector comes.
        gc.collect()
        self._view_of = iris.tensor_from_ptr
        bases = [int(base) for base in self.context.get_heap_bases().tolist()]
        members = dist.get_process_group_ranks(group) if group is not None else range(len(bases))
        super().__init__(arena, [bases[rank] for rank in members], group)

    def view(self, address: int, like: torch.Tensor) -> torch.Tensor:
        size = like.numel() * like.element_size()
        flat: torch.Tensor = self._view_of(address, size, torch.uint8, self.device)
        return flat.view(like.dtype).view(like.shape)

    def close(self) -> None:
        """Unmap the own heap and the peers'; waits for this device."""
        super().close()
        self.context.heap.close()
        # Iris's objects hold each other. Left to the collector they would synchronise the device whenever it comes,
        # maybe in the midst of the capture of a graph; emptied, they go now.
        vars(self.context).clear()
