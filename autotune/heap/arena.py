"""The contract of a symmetric heap, and the arena that allocates from it."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autotune.errors import HeapError, HeapExhausted

ALIGNMENT = 1024
"""Bytes. Covers TMA (128) and lets flags of different tensors never share a cache line."""


def extent(tensor: torch.Tensor) -> int:
    """Elements from a tensor's first to its last, those between its rows included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


class SymmetricHeap(ABC):
    """Memory that all ranks allocate in the same order: a peer's address is its base plus the same offset.

    All ranks make the same calls in the same order, so ``allocate`` is bookkeeping and never talks to the peers.
    ``bases`` holds the ranks' base addresses as this process sees them, int64 [world_size] on the device; Iris's device
    functions take it as ``heap_bases``.
    """

    def __init__(self, arena: torch.Tensor, bases: list[int], group: dist.ProcessGroup | None) -> None:
        """``arena`` is this rank's whole heap, uint8; ``group`` a CPU process group of the ranks that share it."""
        self.arena = arena
        self.device = arena.device
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.group = group
        self.library_group: Any = None
        """The ranks' group for the library's collectives on device tensors; None: the default group."""
        self.host_barrier: Callable[[], None] = functools.partial(dist.barrier, group=group)
        """Waits on the host until every rank is here. The ranks' supervisor may replace it."""
        self.bases = torch.tensor(bases, dtype=torch.int64, device=arena.device)
        self._addresses = bases
        self._used = 0
        self._peers: dict[tuple[int, torch.dtype, torch.Size, int], torch.Tensor] = {}
        self.kept: dict[str, list[torch.Tensor]] = {}
        """Ordinary memory that lives as long, by name: ``kernels.all_gather_gemm.library.kept`` fills it."""
        if bases[self.rank] > arena.data_ptr():
            raise HeapError("the arena is not in this rank's heap")

    @property
    def size(self) -> int:
        return self.arena.numel()

    @property
    def left(self) -> int:
        return self.size - self._used

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous, uninitialised tensor at the same offset on every rank.

        Raises HeapExhausted that names the requested and the free bytes.
        """
        wanted = math.prod(shape) * dtype.itemsize
        begin = self._used
        if begin + wanted > self.size:
            raise HeapExhausted(
                f"symmetric heap: {wanted} bytes requested for {list(shape)} {dtype}, {self.left} of {self.size} free; "
                "open it with more bytes: heap_bytes of a Context, or AUTOTUNE_HEAP_BYTES"
            )
        self._used = min(-(-(begin + wanted) // ALIGNMENT) * ALIGNMENT, self.size)
        return self.arena[begin : begin + wanted].view(dtype).view(shape)

    def mark(self) -> int:
        """The present fill, for ``release``."""
        return self._used

    def release(self, mark: int) -> None:
        """Free everything allocated since ``mark``. The caller makes sure that no rank still uses it."""
        if not 0 <= mark <= self._used:
            raise HeapError(f"release({mark}): marks go from 0 to {self._used}")
        self._used = mark

    def offset(self, tensor: torch.Tensor) -> int:
        """A tensor's offset from the heap's base in bytes; raises HeapError if it is not on the heap."""
        if not self.owns(tensor):
            raise HeapError("the tensor is not on the symmetric heap; allocate it with heap.allocate(…)")
        return tensor.data_ptr() - self._addresses[self.rank]

    def owns(self, tensor: torch.Tensor) -> bool:
        """True if the tensor lies on this heap."""
        return 0 <= tensor.data_ptr() - self.arena.data_ptr() < self.size

    def peer(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A tensor's counterpart in another rank's heap; this process can read and write it."""
        if rank == self.rank:
            return tensor
        if not tensor.is_contiguous():
            raise HeapError("a peer's view needs a contiguous tensor: take the view of the whole tensor, then slice it")
        key = self.offset(tensor), tensor.dtype, tensor.shape, rank
        if key not in self._peers:  # made once: a capture of a CUDA graph is no time to ask the driver about addresses
            self._peers[key] = self.view(self._addresses[rank] + self.offset(tensor), tensor)
        return self._peers[key]

    def borrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """A second tensor over the memory of one without overlaps, which does not keep that memory alive."""
        if tensor.numel() == 0:  # an empty KV cache, say: there is no memory, and an address means nothing
            return torch.empty_like(tensor)
        if tensor.is_contiguous():
            return self.view(tensor.data_ptr(), tensor)
        flat = tensor.as_strided((extent(tensor),), (1,))
        return self.view(flat.data_ptr(), flat).as_strided(tensor.shape, tensor.stride())

    @abstractmethod
    def view(self, address: int, like: torch.Tensor) -> torch.Tensor:
        """A tensor like ``like`` on the heap's device, over memory at an address that the device reaches, such as one
        in a peer's heap.
        """

    def barrier(self) -> None:
        """Wait on the host until every rank is here and its device has finished what was enqueued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # a thread may have another current device
        self.host_barrier()

    def close(self) -> None:
        """Free the memory at once. Its tensors must not be used any more."""
        self._peers.clear()
        self.kept.clear()
        self.arena = torch.empty(0, dtype=torch.uint8)
        self.group = self.library_group = None
        self.host_barrier = _closed  # a group that nobody holds gives its sockets and threads back


def _closed() -> None:
    raise HeapError("the symmetric heap is closed")
