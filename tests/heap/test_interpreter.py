"""Triton's interpreter as the heap on CPUs mends it: looks through the language, and programs that are held."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from ranks_of_functions import run_ranks
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.heap import interpreter as mended
from autotune.heap import interpreter_speed, open_heap


def test_only_the_first_launch_looks_through_the_language(tmp_path: Path) -> None:
    (found,) = run_ranks(__file__, "device_functions", 1, tmp_path)
    assert found["results"] == [True] * 3
    assert found["untouched"] == [True] * 4
    first, *later = found["looks"]
    assert first > 0 and later == [0, 0]


def test_operators_compute_what_triton_s_do(tmp_path: Path) -> None:
    (found,) = run_ranks(__file__, "operators_of_tensors", 1, tmp_path)
    assert found["others"] == 0 and found["refused"] > 500 and found["the same"] > 5_000, found


def test_loads_are_triton_s(tmp_path: Path) -> None:
    (found,) = run_ranks(__file__, "loads", 1, tmp_path)
    assert found["others"] == 0 and found["refused"] > 20 and found["the same"] > 100, found


def test_arguments_are_taken_as_triton_takes_them(tmp_path: Path) -> None:
    (found,) = run_ranks(__file__, "arguments", 1, tmp_path)
    assert len(found) == 2 * 18 and all(found)


def test_a_program_is_held_between_what_it_has_sent_and_its_first_poll(tmp_path: Path) -> None:
    (found,) = run_ranks(__file__, "held_polls", 1, tmp_path)
    # Each launch sends its number, doubled and one more; a peer that writes while it is held answers with that.
    assert found["before"] == [0, 0]
    assert found["held"] == [7, 7, 31, 31]
    assert found["after"] == [31, 31]
    assert found["seconds"] == [0.25, 1.25]


def test_a_poll_sees_no_half_of_a_word(tmp_path: Path) -> None:
    reader, _ = run_ranks(__file__, "words_polled", 2, tmp_path, argument=1000)
    assert reader == [0, 7, 0x1234]


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


def operators_of_tensors(argument: Any) -> dict[str, int]:
    """Every operator with tensors of all types and shapes, and numbers: results like Triton's (at the second call)."""
    triton_s = {name: getattr(tl.tensor, name) for name in interpreter_speed.OPERATORS}
    cast = interpreter.interpreter_semantic.cast
    mended.mend_interpreter()
    launch = interpreter._patch_lang(sum_kernel.fn)
    kinds = (tl.int1, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.uint64, tl.float16, tl.bfloat16, tl.float32)
    numbers = [3, -1, 2**31 - 1, 2**31, -(2**40), True, -0.0, -2.5, float("inf")]
    firsts, seconds = (
        [_tensor(kind, shape, step) for kind in (*kinds, tl.pointer_type(tl.float32)) for shape in ((), (2, 4), (2, 1))]
        for step in (1, -2)
    )
    found = {"the same": 0, "refused": 0, "others": 0}

    def compare(wanted: Any, ours: Any) -> None:
        found["others" if ours != wanted else "refused" if isinstance(wanted, str) else "the same"] += 1

    for name, compute in interpreter_speed.OPERATORS.items():
        theirs = functools.partial(triton_s[name], _semantic=interpreter.interpreter_semantic)
        ours = interpreter_speed._operator(interpreter, compute, theirs)
        for pair in itertools.product(firsts, [*firsts, *numbers]):
            _made(ours, *pair)
        for pair in itertools.product(seconds, [*seconds, *numbers]):
            compare(_made(theirs, *pair), _made(ours, *pair))
    for tensors, kind in itertools.product((firsts, seconds), (*kinds, tl.float8e4nv, tl.pointer_type(tl.int32))):
        for one in tensors:
            compare(_made(cast, one, kind), _made(interpreter.interpreter_semantic.cast, one, kind))
    launch.restore()
    return found


def loads(argument: Any) -> dict[str, int]:
    """Loads with every mask and other value, each of a kind twice, like ``operators_of_tensors``."""
    triton_s = interpreter.interpreter_semantic.load
    mended.mend_interpreter()
    launch = interpreter._patch_lang(sum_kernel.fn)
    memory, found = np.arange(1, 65, dtype=np.uint64), {"the same": 0, "refused": 0, "others": 0}
    policy = tl.core._normalize_cache_policy(None, None, None)
    for turn, element, shape in itertools.product(range(2), (tl.int1, tl.int32, tl.bfloat16, tl.float32), ((), (2, 4))):
        pointers = _tensor(tl.pointer_type(element), shape, 1)
        pointers.handle.data = (memory.ctypes.data + turn + 8 * np.arange(math.prod(shape), dtype=np.uint64)).reshape(
            shape or (1,)
        )
        masks = [None, *(_tensor(tl.int1, each, turn) for each in ((), (2, 4), (2, 1))), _alternating(shape)]
        others = [None, *(_tensor(kind, each, turn * 3) for kind in (element, tl.float32) for each in ((), shape))]
        for mask, other in itertools.product(masks, others):
            pair = [_made(load, pointers, mask, other, policy, False)
                    for load in (triton_s, interpreter.interpreter_semantic.load)]  # fmt: skip
            kind = "others" if pair[0] != pair[1] else "refused" if isinstance(pair[0], str) else "the same"
            found[kind] += 1
    launch.restore()
    return found


def arguments(argument: Any) -> list[bool]:
    """True for each argument of a launch that is Triton's own, the second of a kind as the first."""
    triton_s = interpreter._implicit_cvt
    mended.mend_interpreter()
    numbers = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63, 2**63 - 1, True]
    kinds = (
        torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool,
        torch.float8_e4m3fn,
    )  # fmt: skip
    values = [*numbers, *(torch.zeros(3, dtype=kind) for kind in kinds)]
    return [_made(triton_s, each) == _made(interpreter._implicit_cvt, each) for each in values * 2]


def _alternating(shape: tuple[int, ...]) -> Any:
    mask = _tensor(tl.int1, shape, 1)
    mask.handle.data = (np.arange(math.prod(shape)) % 2).astype(bool).reshape(shape or (1,))
    return mask


def _tensor(element: Any, shape: tuple[int, ...], step: int) -> Any:
    kind = np.uint64 if element.is_ptr() else bool if element == tl.int1 else interpreter._get_np_dtype(element)
    data = (np.arange(1, 1 + math.prod(shape)) * step).astype(kind).reshape(shape or (1,))
    return tl.tensor(interpreter.TensorHandle(data, element), tl.block_type(element, list(shape)) if shape else element)


def _made(make: Any, *arguments: Any) -> Any:
    """Type, shape and values of what is made; the error's type where it is refused."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            result = make(*arguments)
    except Exception as error:  # noqa: BLE001  to be compared
        return type(error).__name__
    data = result.handle.data
    return str(result.type), str(result.handle.dtype), [int(n) for n in result.shape], data.dtype.str, data.tobytes()


@triton.jit
def send_and_read_kernel(ones, sent, slot, seen, ACQUIRE: tl.constexpr, BLOCK: tl.constexpr):
    """Send, then poll a block of words, or a counter. ``ones`` is a descriptor, whose load is no poll."""
    places = tl.arange(0, BLOCK)
    one = tl.max(tl.max(ones.load([0, 0]), axis=0), axis=0)
    tl.atomic_add(sent, tl.load(sent, volatile=True) + one, sem="relaxed", scope="sys")
    if ACQUIRE:
        found = tl.atomic_add(slot, 0, sem="acquire", scope="sys")
    else:
        found = tl.load(slot + places, volatile=True)
    tl.store(seen + places, found)


@triton.jit
def poll_kernel(words, seen, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(seen + places, tl.load(words + places, mask=places % 4 != 3, other=7, volatile=True))


def words_polled(argument: Any) -> list[int]:
    """All that rank 0 sees in words, but for each fourth, that rank 1 changes between 0x1234 and 0 meanwhile."""
    heap = open_heap(1 << 20, dist.new_group(backend="gloo"))
    words, seen = heap.allocate((4096,), torch.int16).zero_(), torch.zeros(4096, dtype=torch.int16)
    done = heap.allocate((1,), torch.int32).zero_()
    heap.barrier()
    found: set[int] = set()
    if heap.rank == 0:
        for _ in range(argument):
            poll_kernel[(1,)](words, seen, BLOCK=4096)
            found |= set(seen.tolist())
        heap.peer(done, 1).fill_(1)
    theirs = heap.peer(words, 0)
    while heap.rank == 1 and not done:
        theirs.fill_(0x1234).fill_(0)
    heap.barrier()
    heap.close()
    return sorted(found)


def held_polls(argument: Any) -> dict[str, Any]:
    """Values in a slot that a peer writes while kernels are held, as these see it, and the seconds of each hold."""
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
