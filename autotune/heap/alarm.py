"""The alarm of a heap's ranks: a page of host memory that all of them map, and their kernels write to and poll.

What a rank has to tell the others when it cannot meet them: that one of its waits timed out, or that it will not come.
A host reads it before each call, in some 50 ns; a wait in a kernel does now and then.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from autotune.agreement import Agreement
from autotune.errors import HeapError
from autotune.heap.arena import SymmetricHeap
from autotune.processes.folder import OwnFolder

MEMORY = Path("/dev/shm")

SIZE = 1 << 14
RAISED, LENGTH, ARRIVED, CALLS = 0, 1, 8, 256
"""int64 words: not zero once it is raised; bytes of the reason; of each rank, how often it came to an agreement, and
how many calls it has made.
"""
REASON = 4096
"""The byte from which on the reason stands, UTF-8."""


class Alarm:
    """Raised by any rank or its kernels, seen by all of them; it stays until ``reset``."""

    def __init__(self, agreement: Agreement, heap: SymmetricHeap) -> None:
        """Collective. Raises HeapError where the page cannot be had, or the GPU cannot write to it."""
        self.rank, self._world_size = agreement.rank, agreement.world_size
        self._cuda = heap.device.type == "cuda"
        with common_folder(agreement) as folder:
            file = os.path.join(folder, "alarm")
            if agreement.rank == 0:
                Path(file).write_bytes(bytes(SIZE))
            agreement.barrier()
            with open(file, "r+b") as opened:
                self._page = mmap.mmap(opened.fileno(), SIZE)
            agreement.barrier()  # before the file goes
        self.words = memoryview(self._page).cast("q")
        self.calls = self.words[CALLS + self.rank : CALLS + self.rank + 1]
        """The word of this rank's calls."""
        self.address = torch.frombuffer(self._page, dtype=torch.uint8).data_ptr()
        """Address of the first word, for the host and for kernels."""
        if self._cuda:
            agreement.gather(lambda: self._register(heap))

    def _register(self, heap: SymmetricHeap) -> None:
        """Let kernels write to the page, at the address that the host has for it, which is tried."""
        runtime = torch.cuda.cudart()
        error = runtime.cudaHostRegister(self.address, SIZE, 0)
        if int(error) != 0:
            raise HeapError(f"the GPU cannot map the host memory in which ranks tell each other of failures: {error}")
        own = torch.empty(1, dtype=torch.int64, device="cpu")
        place = heap.view(self.address + 8 * (ARRIVED + self.rank), own)
        place.fill_(1)
        torch.cuda.synchronize(heap.device)
        if self.words[ARRIVED + self.rank] != 1:
            raise HeapError("the GPU does not reach host memory at the host's address; iris-autotune needs that")
        self.words[ARRIVED + self.rank] = 0

    @property
    def reason(self) -> str:
        """The words of the rank that raised it; empty if a kernel did."""
        return self._page[REASON : REASON + self.words[LENGTH]].decode(errors="replace")

    def raise_(self, reason: str) -> None:
        """Tell all ranks; whoever is first is heard."""
        if not self.words[RAISED]:
            told = reason.encode()[: SIZE - REASON]
            self._page[REASON : REASON + len(told)] = told
            self.words[LENGTH] = len(told)
            self.words[RAISED] = 1

    def arrive(self) -> None:
        """This rank is at the next agreement."""
        self.words[ARRIVED + self.rank] += 1

    @property
    def absent(self) -> list[int]:
        """The ranks that have not come to where this one is."""
        here = self.words[ARRIVED + self.rank]
        return [rank for rank in range(self._world_size) if self.words[ARRIVED + rank] < here]

    def ahead(self, absent: list[int]) -> list[int]:
        """Absent ranks that have gone on to a call that this rank has not made."""
        return [rank for rank in absent if self.words[CALLS + rank] > self.words[CALLS + self.rank]]

    def reset(self) -> None:
        """The first rank takes it back, and each its calls, while nobody raises or reads it: the caller sees to it."""
        self.words[CALLS + self.rank] = 0
        if self.rank == 0:
            self.words[RAISED] = self.words[LENGTH] = 0

    def close(self) -> None:
        if self._cuda:
            torch.cuda.cudart().cudaHostUnregister(self.address)
            self._cuda = False


@contextlib.contextmanager
def common_folder(agreement: Agreement) -> Iterator[str]:
    """A fresh folder, known to all ranks and removed by the first; in memory if the host has such a place."""
    with contextlib.ExitStack() as stack:

        def make() -> str:
            own = stack.enter_context(contextlib.closing(OwnFolder(MEMORY if MEMORY.is_dir() else None)))
            return str(own.path)

        yield agreement.broadcast(make)
