"""Kernels around copies that a copy engine pushes to a peer: one tells the peer of a chunk, one waits for a chunk.

A launch orders the proxies: the signal's kernel begins after the copy before it on its stream, the GEMM after the wait.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import finish, read_epoch


@triton.jit(do_not_specialize=["counter", "peer", "rank"])
def signal_chunk_kernel(arrivals, counter, peer, rank, heap_bases):
    """Add one to the counter of a chunk of ours at a peer. One program."""
    peers = heap.Peers(rank, heap_bases)
    heap.signal(arrivals + counter, peer, peers)


@triton.jit(do_not_specialize=["counter", "spin_limit"])
def wait_for_chunk_kernel(arrivals, counter, epoch_counter, status, spin_limit, FINISH: tl.constexpr):
    """Wait for a peer's chunk. One program; FINISH: the last one of a call, which ends the epoch."""
    peers = heap.Peers(None, None, status, spin_limit)
    heap.wait(arrivals + counter, read_epoch(epoch_counter) + 1, peers)
    if FINISH:
        finish(epoch_counter, 1)
