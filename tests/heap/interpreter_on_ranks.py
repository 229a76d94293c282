"""What a rank finds of Triton's interpreter as the heap on CPUs mends it."""

from __future__ import annotations

import contextlib
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

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
    """Three launches, one with many calls of device functions: results, looks through the language, what is left."""
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


def operands_made_alike(argument: Any) -> dict[str, int]:
    """Pairs of operands, of every type, with both shapes, and numbers: made alike as Triton itself does, or refused."""
    mended.mend_interpreter()
    semantic = interpreter.interpreter_semantic
    kinds = (tl.int1, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.float16, tl.bfloat16, tl.float32, tl.float8e4nv)
    tensors = [_tensor(kind, shape) for kind in kinds for shape in ((), (2, 4), (4,), (2, 1), (1, 4), (4, 4))]
    tensors += [_tensor(tl.pointer_type(tl.float32), shape) for shape in ((), (2, 4), (2, 1), (4, 4))]
    numbers = [0, 1, -1, 2**31 - 1, 2**31, -(2**40), True, 0.0, -0.0, -2.5, 1e300, float("inf")]
    flags = [(), (True, True), (False, False, False), (False, False, True, True)]
    found = {"the same": 0, "refused": 0, "others": 0}
    pairs = [*itertools.product(tensors, tensors), *itertools.product(tensors, numbers)]
    for pair, more in itertools.product([*pairs, *itertools.product(numbers, tensors)], flags):
        wanted = _made(type(semantic).binary_op_type_checking_impl, semantic, *pair, *more)
        ours = _made(semantic.binary_op_type_checking_impl, *pair, *more)
        kind = "others" if ours != wanted else "refused" if isinstance(wanted, str) else "the same"
        found[kind] += 1
    return found


def _tensor(element: Any, shape: tuple[int, ...]) -> Any:
    kind = element if element.is_ptr() else interpreter._get_np_dtype(element)
    data = np.arange(math.prod(shape)).astype(np.uint64 if element.is_ptr() else kind).reshape(shape or (1,))
    return tl.tensor(interpreter.TensorHandle(data, element), tl.block_type(element, list(shape)) if shape else element)


def _made(make: Any, *arguments: Any) -> Any:
    """Types, shapes and values of the two operands, spread as NumPy's operations spread them; the error's type where it
    refuses.
    """
    try:
        with np.errstate(all="ignore"):
            pair = make(*arguments)
    except Exception as error:  # noqa: BLE001  to be compared
        return type(error).__name__
    spread = zip(pair, np.broadcast_arrays(*(each.handle.data for each in pair)), strict=True)
    return [(str(x.type), [int(n) for n in x.shape], data.dtype.str, str(data.tolist())) for x, data in spread]


@triton.jit
def send_and_read_kernel(ones, sent, slot, seen, ACQUIRE: tl.constexpr, BLOCK: tl.constexpr):
    """Send, then poll a block of words, or a counter; BLOCK is 1 or more. What was seen is kept. ``ones`` is a
    descriptor, whose load is no poll.
    """
    places = tl.arange(0, BLOCK)
    one = tl.max(tl.max(ones.load([0, 0]), axis=0), axis=0)
    tl.atomic_add(sent, tl.load(sent, volatile=True) + one, sem="relaxed", scope="sys")
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
    ones = TensorDescriptor.from_tensor(torch.ones(2, 16, dtype=torch.int32), [2, 16])
    held: list[float] = []

    def peer(seconds: float) -> None:
        held.append(seconds)
        slot.fill_(int(sent[0]))

    def launch(acquire: bool) -> int:
        send_and_read_kernel[(1,)](ones, sent, slot, seen, ACQUIRE=acquire, BLOCK=1 if acquire else 4)
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
