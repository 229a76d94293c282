"""Operations whose configs keep scratch on the symmetric heap: one config's at a time, in place of the last one's."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.workloads.workload import Operation, Run

SPINS_OFFLINE = 1 << 20
"""Stands for the limit of a wait where kernels are only compiled."""


class ScratchOperation(Operation):
    """Takes care of the scratch; what is left to say is what a config shares, and what enqueues one call of it.

    ``scratch`` is None where a config has none, else it has a ``status`` word: int32 [1], 1 once a wait timed out.
    """

    def __init__(self, heap: SymmetricHeap) -> None:
        """Call it once the operands that outlive a config have been allocated on ``heap``."""
        self._heap = heap
        self._mark = heap.mark()
        self.scratch: Any = None

    @abstractmethod
    def share(self, config: Config) -> Any:
        """Allocate a config's scratch on the heap, counters cleared, or return None. Collective."""

    @abstractmethod
    def bind(self, config: Config) -> Run:
        """What enqueues one call of a config on its scratch."""

    def prepare(self, config: Config) -> Run:
        """Give the last config's scratch back, take this one's, and return what enqueues one call. Collective."""
        self._heap.barrier()
        self.scratch = None
        self._heap.release(self._mark)
        self.scratch = self.share(config)
        return self.bind(config)

    def timed_out(self) -> bool:
        """True if a wait has set the status word."""
        return self.scratch is not None and bool(self.scratch.status.item())
