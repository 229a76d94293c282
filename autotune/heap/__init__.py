"""The symmetric heap: Iris or torch's symmetric memory on GPUs, shared memory on CPUs, one contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

    from autotune.heap.arena import SymmetricHeap


def open_heap(size: int, group: dist.ProcessGroup | None = None) -> SymmetricHeap:
    """Set up a symmetric heap of ``size`` bytes per rank: on GPUs if there are any, else in shared memory.

    ``group`` is a CPU (gloo) process group of the ranks that share the heap; None: of all. Collective over them; with
    Iris over all ranks, each with a group of its own. Raises HeapError, and RanksDisagree (``providers``).
    """
    import torch

    # A heap is written to in a caller's inference mode and outside of it; and Iris's tensors are on the host where it
    # names no device.
    with torch.inference_mode(False), torch.device("cpu"):
        if torch.cuda.is_available():
            from autotune.agreement import Agreement
            from autotune.heap.providers import provider

            if provider(Agreement(group if group is not None else torch.distributed.group.WORLD)) == "torch":
                from autotune.heap.symm_mem import TorchHeap

                return TorchHeap(size, group)
            from autotune.heap.gpu import IrisHeap

            return IrisHeap(size, group)
        from autotune.heap.shared import SharedMemoryHeap

        return SharedMemoryHeap(size, group)
