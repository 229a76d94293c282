"""The symmetric heap on torch's symmetric memory: without Iris, and on several hosts of one NVLink domain."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _SymmetricMemory
from torch.distributed import _symmetric_memory as symm_mem

from autotune.agreement import Agreement
from autotune.errors import HeapError
from autotune.heap.arena import ALIGNMENT, SymmetricHeap
from autotune.hosts import this_machine

BACKEND = "CUDA"
"""Torch's backend whose memory peers map: by fabric handles where the driver has them, else within a host."""

IMEX = Path("/dev/nvidia-caps-imex-channels")

AT_RENDEZVOUS = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
"""No multicast, which no kernel of ours uses; ranks may take turns on a GPU."""


class TorchHeap(SymmetricHeap):
    """One allocation of torch's symmetric memory, divided by our arena; addresses come from torch."""

    def __init__(self, size: int, group: dist.ProcessGroup | None = None) -> None:
        """Collective over ``group``, whatever its backend: the ranks meet in its store. Raises HeapError.

        Torch counts a process's rendezvous: ranks that have made different numbers of them wait in vain.
        """
        self.device = torch.device("cuda", torch.cuda.current_device())
        whole = group if group is not None else dist.distributed_c10d._get_default_group()
        agreement = Agreement(whole)
        self._memory: list[Any] = []

        def step(action: Callable[[], Any]) -> None:
            try:
                self._memory.append(action())
            except RuntimeError as error:
                ranks = f"{whole.size()} ranks"
                raise HeapError(
                    f"torch could not set up symmetric memory of {size} bytes on each of {ranks}: {error}"
                ) from error

        several = len(set(agreement.gather(this_machine))) > 1
        agreement.gather(lambda: step(lambda: _allocate(size + ALIGNMENT, self.device, several)))
        with _environment(AT_RENDEZVOUS):
            agreement.gather(lambda: step(lambda: symm_mem.rendezvous(self._memory[0], whole)))
        own, handle = self._memory
        begin = own.data_ptr() + -own.data_ptr() % ALIGNMENT  # of a page, so the same place on every rank
        arena = self.view(begin, torch.empty(size, dtype=torch.uint8, device="meta"))
        super().__init__(arena, list(handle.buffer_ptrs), group)

    def view(self, address: int, like: torch.Tensor) -> torch.Tensor:
        size = like.numel() * like.element_size()
        storage: Any = torch._C._construct_storage_from_data_pointer(address, self.device, size)
        flat = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
        return flat.view(like.dtype).view(like.shape)

    def close(self) -> None:
        """Unmap the own memory and the peers'; waits for this device."""
        super().close()
        self._memory.clear()  # which alone holds it: the heap's tensors are views of addresses


def _allocate(size: int, device: torch.device, several_machines: bool) -> torch.Tensor:
    """Not by ``symm_mem.empty``, whose pool would keep the memory. Raises HeapError where a rendezvous could only hang:
    without fabric handles ranks send each other descriptors, which stay on their machine.
    """
    if several_machines and not any(IMEX.glob("channel*")):
        raise HeapError(
            f"ranks are on several machines, and {IMEX} of {socket.gethostname()} has no channel by which their GPUs "
            "reach each other's memory: set up nvidia-imex within one NVLink domain (containers need the device, too), "
            "or open contexts for groups of one machine's ranks"
        )
    backend = symm_mem.get_backend(device)
    if backend != BACKEND:
        raise HeapError(
            f"torch's symmetric memory is {backend}'s here, and kernels need {BACKEND}'s: unset TORCH_SYMMMEM, or set "
            "AUTOTUNE_HEAP=iris"
        )
    return _SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, device)


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Variables that torch reads meanwhile; the program's own symmetric memory keeps its settings."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
