"""Measures the rates of the GPUs and their links, for the roofline."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from autotune.dtypes import COMBINATIONS, FP8
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.streams import on, wait
from autotune.kernels.launching.tensors import OPERAND_DTYPES

SIDE = 8192
"""Rows, columns and depth of the GEMM."""

COPIED = 512 << 20
"""Bytes copied within device memory, far more than any L2 holds."""

MOST_SENT, LEAST_SENT = 64 << 20, 1 << 20
"""Bytes sent to each peer: with the most, start-up costs do not show; below the least they would take too large a
share.
"""

WINDOW = 0.06
"""Seconds of warm-up and of timing per call, so that the clocks are those that last."""

FEWEST, MOST = 3, 200


def measured_rates(heap: SymmetricHeap, dtype: str) -> dict[str, float]:
    """Rates of one GPU per microsecond: ``flops`` of a large GEMM, bytes of ``memory`` read and written by a copy,
    bytes over the ``links`` from all peers at once (missing for one rank, or with a full heap).

    Collective; takes half a second or so.
    """
    rates = {}
    piece = min(MOST_SENT, heap.left // (heap.world_size + 2))
    # First, and on the heap alone: no rank may fail before the others have what it sends.
    if heap.world_size > 1 and piece >= LEAST_SENT:
        rates["links"] = (heap.world_size - 1) * piece / _exchange_time(heap, piece)
    rates["memory"] = 2 * COPIED / _copy_time(heap.device)
    rates["flops"] = 2 * SIDE**3 / _gemm_time(heap.device, dtype)
    torch.cuda.empty_cache()  # what this has taken is for others too
    return rates


def _copy_time(device: torch.device) -> float:
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _microseconds(lambda: target.copy_(source))


def _gemm_time(device: torch.device, dtype: str) -> float:
    kinds = (OPERAND_DTYPES[dtype], OPERAND_DTYPES[COMBINATIONS[dtype].b])
    a, b = (torch.randn((SIDE, SIDE), device=device).to(kind) for kind in kinds)
    if dtype in FP8:
        one, product = torch.ones((), device=device), torch.empty((SIDE, SIDE), dtype=torch.bfloat16, device=device)
        return _microseconds(
            lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=product.dtype, out=product)
        )
    out = torch.empty_like(a)
    return _microseconds(lambda: torch.matmul(a, b, out=out))


def _exchange_time(heap: SymmetricHeap, piece: int) -> float:
    """Microseconds for every rank to send ``piece`` bytes to every other one, by the copy engines."""
    mark = heap.mark()
    inboxes = heap.allocate((heap.world_size, piece), torch.uint8)
    source = heap.allocate((piece,), torch.uint8)
    source.zero_()  # so that what takes this memory next finds no flags in it
    peers = [rank for rank in range(heap.world_size) if rank != heap.rank]
    targets = [heap.peer(inboxes, rank)[heap.rank] for rank in peers]
    streams = [torch.cuda.Stream() for _ in peers]

    def send() -> None:
        main = torch.cuda.current_stream()
        wait(streams, [main])
        for stream, target in zip(streams, targets, strict=True):
            with on(stream):
                target.copy_(source)
        wait([main], streams)

    heap.barrier()
    taken = _microseconds(send)
    heap.barrier()  # nobody still sends to what is released
    heap.release(mark)
    return taken


def _microseconds(call: Callable[[], object]) -> float:
    """The median of a window of calls, after another window."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = int(min(max(WINDOW / (time.perf_counter() - begin), FEWEST), MOST))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * count + 1)]
    for event in events[:-1]:
        event.record()
        call()
    events[-1].record()
    torch.cuda.synchronize()
    timed = events[count:]
    times: list[float] = [one.elapsed_time(next_one) * 1e3 for one, next_one in zip(timed, timed[1:], strict=False)]
    return statistics.median(times)
