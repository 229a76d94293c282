"""Patches gaps of Triton's interpreter for rank processes that share memory."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

from autotune.dtypes import FP8
from autotune.heap.interpreter_speed import hasten


@functools.cache
def mend_interpreter() -> None:
    """Replace the write-back, let ``dot`` multiply bf16, and fp8 with its NaN, and each row alike, spread truth as
    truth, and poll words of 16 bits as a whole. Triton has no switch for any of it.

    Write-back: the interpreter copies arguments to the host and back after a launch. It copies host tensors onto
    themselves, which would undo the stores of peers into them.

    bf16: NumPy has no such type; the interpreter keeps the bits as uint16, and its ``dot`` would multiply those
    integers.

    fp8: the interpreter takes e4m3's NaN, with which inboxes are poisoned, for a number.

    Rows: OpenBLAS orders a row's sums by its place in the product, on some processors (AVX-512) but not on others.

    Truth: a comparison of scalars, spread over a tile, becomes integers, which Triton 3.9 refuses as a mask.

    Polls: the interpreter copies elements by memcpy, and glibc's (2.36, x86) copies two bytes in two moves. So a
    sentinel word of 16 bits could be seen half written; the 32 bits around it are copied in one.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter.GridExecutor._restore_args_dev = lambda *_: None
    builder = type(interpreter.interpreter_builder)

    def create_dot(self: Any, a: Any, b: Any, acc: Any, *_: Any) -> Any:
        def widened(operand: Any) -> Any:
            if operand.dtype.scalar.is_fp8():
                return interpreter.TensorHandle(_fp8_numbers(operand.dtype.scalar)[operand.data], tl.float32)
            if operand.dtype.scalar != tl.bfloat16:
                return operand
            return self.create_fp_ext(operand, tl.block_type(tl.float32, list(operand.data.shape)))

        product = np.einsum("...ik,...kj->...ij", widened(a).data, widened(b).data, dtype=acc.data.dtype)
        return interpreter.TensorHandle(product + acc.data, acc.dtype.scalar)

    splat = builder.create_splat

    def create_splat(self: Any, kind: Any, scalar: Any) -> Any:
        made = splat(self, kind, scalar)
        if scalar.data.dtype == bool:
            made.data = made.data.astype(bool)
        return made

    load = builder.create_masked_load

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        element = ptrs.get_element_ty()
        if not named.get("is_volatile", rest and rest[-1]) or element.primitive_bitwidth != 16:
            return load(self, ptrs, mask, other, *rest, **named)
        around = interpreter.TensorHandle(ptrs.data & np.uint64(2**64 - 4), tl.pointer_type(tl.uint32))
        words = load(self, around, mask, None, *rest, **named).data >> (ptrs.data % 4 * 8).astype(np.uint32)
        found = words.astype(np.uint16).view(interpreter._get_np_dtype(element))
        return interpreter.TensorHandle(found if other is None else np.where(mask.data, found, other.data), element)

    builder.create_dot, builder.create_splat, builder.create_masked_load = create_dot, create_splat, create_masked_load
    hasten(interpreter)


@contextlib.contextmanager
def first_poll_held(seconds: float) -> Iterator[None]:
    """Before the next poll of this process's programs they are held for ``seconds``.

    GPUs may hold a program between any two instructions, the interpreter never does: a program waits at once for what
    answers what it has sent. Held there, it reads long after its peers have got what it sent, and have gone on to their
    next launch if nothing keeps them from that. A poll is an acquire, or a volatile load of several words.
    """
    from triton.runtime import interpreter

    builder = type(interpreter.interpreter_builder)
    load, add, acquire = builder.create_masked_load, builder.create_atomic_rmw, interpreter._ir.MEM_SEMANTIC.ACQUIRE

    def hold() -> None:
        release()
        time.sleep(seconds)

    def release() -> None:
        builder.create_masked_load, builder.create_atomic_rmw = load, add

    # Between addresses, mask and the last parameter Triton 3.9 has others than 3.6; descriptors give them by name.
    def create_masked_load(self: Any, ptrs: Any, *rest: Any, **named: Any) -> Any:
        if named.get("is_volatile", rest[-1]) and ptrs.data.size > 1:
            hold()
        return load(self, ptrs, *rest, **named)

    def create_atomic_rmw(self: Any, *rest: Any) -> Any:
        order = rest[-2]
        if order == acquire:
            hold()
        return add(self, *rest)

    builder.create_masked_load, builder.create_atomic_rmw = create_masked_load, create_atomic_rmw
    try:
        yield
    finally:
        release()


@functools.cache
def _fp8_numbers(dtype: Any) -> Any:
    """The number behind each of a type's 256 bytes."""
    import torch
    import triton.language as tl

    of = next(getattr(torch, each.torch) for each in FP8.values() if getattr(tl, each.triton) == dtype)
    return torch.arange(256, device="cpu").to(torch.uint8).view(of).to(torch.float32).numpy()
