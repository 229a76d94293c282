"""The symmetric heap on CPUs: files that every rank process maps, for Triton's interpreter."""

from __future__ import annotations

import ctypes
import os
import weakref

import torch
import torch.distributed as dist
from triton import knobs

from autotune.agreement import Agreement
from autotune.errors import HeapError
from autotune.heap.alarm import common_folder
from autotune.heap.arena import SymmetricHeap
from autotune.heap.interpreter import mend_interpreter
from autotune.heap.peers import PEERS
from autotune.machine import check_interpreter


class SharedMemoryHeap(SymmetricHeap):
    """Each rank maps its own file and its peers'. The files are unlinked before the constructor returns.

    So nothing is left behind, however a rank dies: the memory goes with the last process. The next heap removes the
    files of ranks killed before that.
    """

    def __init__(self, size: int, group: dist.ProcessGroup | None = None) -> None:
        """Collective over ``group``; ``size`` is in bytes. Raises HeapError, and VersionsClash."""
        check_interpreter()
        if not knobs.runtime.interpret:
            raise HeapError(
                "there is no GPU here; on CPUs, run the program with TRITON_INTERPRET=1 in its environment, "
                "which Triton reads when kernels are imported"
            )
        mend_interpreter()
        agreement = Agreement(group if group is not None else dist.group.WORLD)
        rank = agreement.rank
        with common_folder(agreement) as folder:
            files = [os.path.join(folder, f"rank{peer}") for peer in range(agreement.world_size)]
            agreement.gather(lambda: _allocate(files[rank], size, rank))
            self._maps = [torch.from_file(file, shared=True, size=size, dtype=torch.uint8) for file in files]
            agreement.barrier()
        self._let_go = weakref.finalize(self, PEERS.watch(set(agreement.gather(os.getpid)) - {os.getpid()}))
        super().__init__(self._maps[rank], [part.data_ptr() for part in self._maps], group)

    def view(self, address: int, like: torch.Tensor) -> torch.Tensor:
        if not like.numel():  # of which torch makes no view
            return torch.empty_like(like)
        memory = (ctypes.c_byte * (like.numel() * like.element_size())).from_address(address)
        return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)

    def close(self) -> None:
        self._let_go()
        self._maps.clear()
        super().close()


def _allocate(file: str, size: int, rank: int) -> None:
    """Written, not just sized: a full /dev/shm or /tmp then says so here and not as a SIGBUS in a kernel."""
    try:
        with open(file, "wb") as opened:
            os.posix_fallocate(opened.fileno(), 0, size)
    except OSError as error:
        raise HeapError(f"shared memory of {size} bytes for rank {rank}: {error.strerror}") from error
