"""What a rank finds of Triton's interpreter as the heap on CPUs mends it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.runtime import interpreter

from autotune.heap import interpreter as mended
from autotune.heap import open_heap


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _six_times(x):
    return _twice(x) + _twice(_twice(x))


@triton.jit
def sum_kernel(values, out, times, BLOCK: tl.constexpr):
    """Six times the values, that many times; and what wraps around in 32 bits."""
    total = tl.zeros((BLOCK,), tl.int32)
    for _ in range(times):
        total += _six_times(tl.load(values + tl.arange(0, BLOCK)))
    tl.store(out + tl.arange(0, BLOCK), total)


def device_functions(argument: Any) -> dict[str, Any]:
    """Launches with few and many calls of device functions: results, looks through the language, what is left."""
    heap = open_heap(1 << 16, dist.new_group(backend="gloo"))
    looks, look = [], interpreter._patch_builtin
    interpreter._patch_builtin = lambda *words: looks.append(words[0]) or look(*words)
    values = torch.tensor([1, -2, 3, 1 << 30], dtype=torch.int32)
    out = torch.zeros(4, dtype=torch.int32)
    found: dict[str, Any] = {"untouched": [tl.core.is_builtin(tl.load)], "looks": [], "results": []}
    for times in (1, 50, 1):
        looks.clear()
        sum_kernel[(2,)](values, out, times, BLOCK=4)
        found["untouched"].append(tl.core.is_builtin(tl.load) and tl.core.is_builtin(tl.tensor.to))
        found["looks"].append(len(looks))
        found["results"].append(torch.equal(out, values * 6 * times))
    heap.close()
    return found


@triton.jit
def send_and_read_kernel(sent, slot, seen, ACQUIRE: tl.constexpr, BLOCK: tl.constexpr):
    """Send, then poll a block of words, or a counter; BLOCK is 1 or more. What was seen is kept."""
    places = tl.arange(0, BLOCK)
    tl.atomic_add(sent, tl.load(sent, volatile=True) + 1, sem="relaxed", scope="sys")
    if ACQUIRE:
        found = tl.atomic_add(slot, 0, sem="acquire", scope="sys")
    else:
        found = tl.load(slot + places, volatile=True)
    tl.store(seen + places, found)


def held_polls(argument: Any) -> dict[str, Any]:
    """What kernels have seen in a slot that a peer writes to while they are held: its number for each hold, which may
    differ for each; and the seconds of each hold.
    """
    heap = open_heap(1 << 16, dist.new_group(backend="gloo"))
    sent, slot, seen = (torch.zeros(4, dtype=torch.int32) for _ in range(3))
    held: list[float] = []

    def peer(seconds: float) -> None:
        held.append(seconds)
        slot.fill_(int(sent[0]))

    def launch(acquire: bool) -> int:
        send_and_read_kernel[(1,)](sent, slot, seen, ACQUIRE=acquire, BLOCK=1 if acquire else 4)
        return int(seen[0])

    mended.time = SimpleNamespace(sleep=peer)  # type: ignore[assignment]
    found: dict[str, Any] = {"before": [launch(acquire) for acquire in (False, True)]}
    for number, acquire in enumerate((False, True)):
        with mended.first_poll_held(0.25 + number):
            found["held"] = [*found.get("held", []), launch(acquire), launch(not acquire)]
    with contextlib.suppress(ZeroDivisionError), mended.first_poll_held(9.0):
        raise ZeroDivisionError
    found |= {"after": [launch(acquire) for acquire in (False, True)], "seconds": held}
    heap.close()
    return found
