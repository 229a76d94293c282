"""The alarm of a heap's ranks: a page of host memory that all of a host map, and their kernels write to and poll.

What a rank has to tell the others when it cannot meet them: that one of its waits timed out, or that it will not come.
A host reads it before each call, in some 50 ns; a wait in a kernel does now and then. Ranks on several hosts have a
page on each, and a ``Relay`` between them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from autotune.agreement import Agreement
from autotune.errors import HeapError
from autotune.heap.arena import SymmetricHeap
from autotune.heap.relay import PERIOD, Relay
from autotune.heap.status import MOST_RANKS
from autotune.hosts import SHARED_MEMORY, first_on_hosts
from autotune.processes.folder import OwnFolder

SIZE = 1 << 14
RAISED, LENGTH, ARRIVED, CALLS = 0, 1, 8, 256
"""int64 words: not zero once it is raised; bytes of the reason; of each rank, how often it came to an agreement, and
how many calls it has made since the last ``reset``, above GENERATION the number of those.
"""
GENERATION = 32
"""Bits: a word of before a reset, which another host may still have, is less than any after it."""
LATE = 2.0
"""Seconds that another host's reason may be late by, where processes share cores."""
REASON = 4096
"""The byte from which on the reason stands, UTF-8."""


class Alarm:
    """Raised by any rank or its kernels, seen by all of them; it stays until ``reset``."""

    def __init__(self, agreement: Agreement, heap: SymmetricHeap) -> None:
        """Collective. Raises HeapError where the page cannot be had, or the GPU cannot write to it, and for too many
        ranks.
        """
        if agreement.world_size > MOST_RANKS:
            raise HeapError(
                f"a context of {agreement.world_size} ranks: at most {MOST_RANKS} can tell each other of a wait that "
                "timed out; open contexts for smaller groups of ranks"
            )
        self.rank, self._world_size = agreement.rank, agreement.world_size
        self._cuda = heap.device.type == "cuda"
        self._firsts = first_on_hosts(agreement)
        self._first = self._firsts[self.rank]
        self._lock = threading.Lock()
        with common_folder(agreement, self._first) as folder:
            file = os.path.join(folder, "alarm")
            if agreement.rank == self._first:
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
        self._relay: Relay | None = None
        if others := set(self._firsts) - {self._first}:
            if self.rank == self._first:
                self._relay = Relay(agreement, others, self._tell, self._hear)
            agreement.barrier()  # before one looks for what another has to say
            if self._relay is not None:
                self._relay.start()

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

    def awaited_reason(self) -> str:
        """``reason``, after a moment where another host may have to tell it: a kernel's word is faster."""
        deadline = time.monotonic() + LATE * (len(set(self._firsts)) > 1)
        while not self.words[LENGTH] and time.monotonic() < deadline:
            time.sleep(PERIOD)
        return self.reason

    def raise_(self, reason: str) -> None:
        """Tell all ranks; whoever is first is heard."""
        if not self.words[RAISED]:
            self._write(reason)
            self.words[RAISED] = 1

    def _write(self, reason: str) -> None:
        told = reason.encode()[: SIZE - REASON]
        self._page[REASON : REASON + len(told)] = told
        self.words[LENGTH] = len(told)

    @property
    def _generation(self) -> int:
        """The number of resets of this host's page."""
        return self.words[CALLS + self._first] >> GENERATION

    def _tell(self) -> bytes:
        """The page as far as this host's ranks have written it."""
        words = [self.words[place] for place in self._places(self._first)]
        with self._lock:
            state = self._generation, self.words[RAISED]
            return struct.pack(f"{2 + len(words)}q", *state, *words) + self.reason.encode()

    def _hear(self, first: int, told: bytes) -> None:
        """Take in the words of the host of rank ``first``. Raised before a reset here, it counts no more."""
        places = self._places(first)
        layout = struct.Struct(f"{2 + len(places)}q")
        generation, raised, *words = layout.unpack_from(told)
        for place, word in zip(places, words, strict=True):
            self.words[place] = word
        with self._lock:
            if raised and generation == self._generation:
                if not self.words[LENGTH]:  # a kernel may have raised it, which gives no reason
                    self._write(told[layout.size :].decode(errors="replace"))
                self.words[RAISED] = 1

    def _places(self, first: int) -> list[int]:
        return [begin + rank for begin in (ARRIVED, CALLS) for rank, its in enumerate(self._firsts) if its == first]

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
        """A host's first rank takes it back, and each rank its calls, while nobody raises or reads it: the caller sees
        to it.
        """
        with self._lock:
            if self.rank == self._first:
                self.words[RAISED] = self.words[LENGTH] = 0
            self.calls[0] = (self.calls[0] >> GENERATION) + 1 << GENERATION

    def close(self) -> None:
        if self._relay is not None:
            self._relay.end()
            self._relay = None
        if self._cuda:
            torch.cuda.cudart().cudaHostUnregister(self.address)
            self._cuda = False


@contextlib.contextmanager
def common_folder(agreement: Agreement, owner: int = 0) -> Iterator[str]:
    """A fresh folder, known to the ranks that name this ``owner``, who removes it; in memory if the host has such a
    place. Collective.
    """
    with contextlib.ExitStack() as stack:

        def make() -> str:
            if agreement.rank != owner:
                return ""
            place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
            return str(stack.enter_context(contextlib.closing(OwnFolder(place))).path)

        yield agreement.gather(make)[owner]
