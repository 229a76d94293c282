"""Patches gaps of Triton's interpreter for rank processes that share memory, and saves most of its time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any

from autotune.dtypes import FP8


@functools.cache
def mend_interpreter() -> None:
    """Replace the write-back, let ``dot`` multiply bf16, and fp8 with its NaN, and spread truth as truth. Triton has no
    switch for any of it.

    Write-back: the interpreter copies arguments to the host and back after a launch. It copies host tensors onto
    themselves, which would undo the stores of peers into them.

    bf16: NumPy has no such type; the interpreter keeps the bits as uint16, and its ``dot`` would multiply those
    integers.

    fp8: the interpreter takes e4m3's NaN, with which inboxes are poisoned, for a number.

    Truth: a comparison of scalars, spread over a tile, becomes integers, which Triton 3.9 refuses as a mask.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter.GridExecutor._restore_args_dev = lambda *_: None
    builder = type(interpreter.interpreter_builder)
    dot = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        def widened(operand: Any) -> Any:
            if operand.dtype.scalar.is_fp8():
                return interpreter.TensorHandle(_fp8_numbers(operand.dtype.scalar)[operand.data], tl.float32)
            if operand.dtype.scalar != tl.bfloat16:
                return operand
            return self.create_fp_ext(operand, tl.block_type(tl.float32, list(operand.data.shape)))

        return dot(self, widened(a), widened(b), *rest)

    splat = builder.create_splat

    def create_splat(self: Any, kind: Any, scalar: Any) -> Any:
        made = splat(self, kind, scalar)
        if scalar.data.dtype == bool:
            made.data = made.data.astype(bool)
        return made

    builder.create_dot, builder.create_splat = create_dot, create_splat
    _hasten(interpreter)


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


def _hasten(interpreter: Any) -> None:
    """Leave out what the interpreter does in vain.

    At every operation on integers it computes whether that overflows, for an assertion that is off. For every look at
    its table of element types it makes the table. Every tensor describes its shape anew, and two operands of one type
    and shape are made alike. bf16 becomes fp32, and back, field by field.
    """
    look_up, found = interpreter._get_np_dtype, dict[str, Any]()

    def np_dtype(dtype: Any) -> Any:
        element = dtype.scalar
        if element.name not in found:
            found[element.name] = look_up(element)
        return found[element.name]

    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=options.debug)
    interpreter._get_np_dtype = np_dtype
    _replace_once(interpreter)
    _remember_shapes(interpreter.tl.core)
    _pass_what_is_alike(interpreter.interpreter_semantic, interpreter.tl.core)
    _shift_bf16(interpreter)


def _replace_once(interpreter: Any) -> None:
    """Look through Triton's language once for what has to be replaced: the interpreter does at every launch, and, in
    vain, at every call of a device function. What it puts in a function's place checks every call's arguments twice.
    """
    tl, semantic, replace = interpreter.tl, interpreter.interpreter_semantic, interpreter._patch_lang
    checked = tl.core.load.__code__
    replaced: dict[tuple[Any, ...], list[tuple[Any, str, Any]]] = {}

    def replace_one(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        function = member.__wrapped__ if member.__code__ is checked else member

        def call(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return function(*arguments, **named)

        scope.set_attr(place, name, call)

    @functools.cache
    def languages(function: Any) -> tuple[Any, ...]:
        return tuple(value for value in function.__globals__.values() if value is tl or value is tl.core)

    def replace_once(function: Any) -> Any:
        scope, here = interpreter._LangPatchScope(), languages(function)
        if not any(tl.core.is_builtin(each) for part in here or [tl] for each in (part.load, part.tensor.to)):
            return scope  # the launch that replaced them puts them back
        if here not in replaced:
            scope = replace(function)
            replaced[here] = [(place, name, vars(place)[name]) for place, name, _ in scope._changes]
            return scope
        for change in replaced[here]:
            scope.set_attr(*change)
        return scope

    interpreter._patch_attr, interpreter._patch_lang = replace_one, replace_once


def _shift_bf16(interpreter: Any) -> None:
    """bf16 is the upper half of an fp32."""
    import numpy

    tl, handle, builder = interpreter.tl, interpreter.TensorHandle, type(interpreter.interpreter_builder)
    cast = builder.cast_impl

    def cast_impl(self: Any, source: Any, kind: Any) -> Any:
        pair = source.dtype.scalar, kind.scalar
        if pair == (tl.bfloat16, tl.float32):
            return handle((source.data.astype(numpy.uint32) << 16).view(numpy.float32), tl.float32)
        if pair == (tl.float32, tl.bfloat16):
            return handle((source.data.view(numpy.uint32) >> 16).astype(numpy.uint16), tl.bfloat16)
        return cast(self, source, kind)

    builder.cast_impl = cast_impl


def _remember_shapes(core: Any) -> None:
    """Describe each shape once: a third of the interpreter's time went into names, checks and tuples of shapes."""
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    types: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, tuple[Any, Any]] = {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [getattr(size, "value", size) for size in shape]
        key = element_ty.name, getattr(element_ty, "address_space", None), *sizes
        if key not in types:
            make_type(self, element_ty, shape)
            self.of_tensors = described(self)
            types[key] = dict(self.__dict__)
        self.__dict__.update(types[key])

    def described(type: Any) -> tuple[Any, Any]:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in shapes:
            made = object.__new__(core.tensor)
            make_tensor(made, None, type)
            shapes[key] = made.shape, made.numel
        return shapes[key]

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.__dict__.get("of_tensors") or described(type)

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor


def _pass_what_is_alike(semantic: Any, core: Any) -> None:
    """An operation's two operands need no promotion if they are of one type, and a number beside a tensor of its kind
    becomes one at once: half the interpreter's time went into finding that out, and a tenth into unpacking constants
    that are none. Nor are their elements spread over their joint shape: NumPy does that as it computes.
    """
    make_alike, spread = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value
    unwrap, tensor = core._unwrap_if_constexpr, core.tensor
    plain = {tensor, int, float, bool, type(None)}
    joint: dict[tuple[int, int], list[int] | None] = {}

    def alike(lhs: Any, rhs: Any, *flags: bool, **named: bool) -> Any:
        arithmetic = all(flags[2:3]) and not named
        pair = at_once(lhs, rhs, any(flags[:1]), any(flags[3:])) if arithmetic else None
        return pair or make_alike(lhs, rhs, *flags, **named)

    def at_once(lhs: Any, rhs: Any, may_point: bool, divides: bool) -> tuple[Any, Any] | None:
        points = may_point and type(lhs) is tensor and lhs.dtype.is_ptr()
        if type(lhs) is tensor is type(rhs):
            names = lhs.dtype.name, rhs.dtype.name
            if names == ("int64", "int32"):
                rhs = semantic.cast(rhs, lhs.dtype)
            elif names == ("int32", "int64"):
                lhs = semantic.cast(lhs, rhs.dtype)
            elif points:
                return of_one_shape(lhs, rhs) if rhs.dtype.is_int() and not divides else None
            elif lhs.dtype is not rhs.dtype or lhs.dtype.is_ptr() or divides and not lhs.dtype.is_int():
                return None
        elif type(lhs) is tensor and _holds("int32" if points else lhs.dtype.name, rhs):
            rhs = constant(rhs, core.int32 if points else lhs.dtype)
        elif type(rhs) is tensor and _holds(rhs.dtype.name, lhs):
            lhs = constant(lhs, rhs.dtype)
        else:
            return None
        return of_one_shape(lhs, rhs)

    def of_one_shape(lhs: Any, rhs: Any) -> tuple[Any, Any] | None:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        if lhs.type.is_block() and not rhs.type.is_block():
            return lhs, tensor(rhs.handle, of_element(lhs.type, rhs.dtype))
        if rhs.type.is_block() and not lhs.type.is_block():
            return tensor(lhs.handle, of_element(rhs.type, lhs.dtype)), rhs
        pair = id(lhs.shape), id(rhs.shape)  # each shape is described once, for good
        if pair not in joint:
            joint[pair] = _joint_shape([*lhs.type.shape], [*rhs.type.shape])
        shape = joint[pair]
        if shape is None:
            return None
        return tuple(tensor(each.handle, core.block_type(each.dtype, shape)) for each in (lhs, rhs))

    def of_element(like: Any, element: Any) -> Any:
        return like if like.scalar is element else like.with_element_ty(element)

    def constant(number: Any, element: Any) -> Any:
        return integer(number, element) if type(number) is int else semantic.scalar_constant(number, element)

    integer = functools.lru_cache(1 << 12)(semantic.scalar_constant)  # not for floats: -0.0 is 0.0 there

    semantic.binary_op_type_checking_impl = alike
    semantic.broadcast_impl_value = lambda lhs, rhs: (lhs, rhs) if lhs.shape is rhs.shape else spread(lhs, rhs)
    core._unwrap_if_constexpr = lambda value: value if type(value) in plain else unwrap(value)


def _joint_shape(left: list[int], right: list[int]) -> list[int] | None:
    """The shape of both where one of two sizes is 1; None if they do not fit, or one has more dimensions."""
    if len(left) != len(right) or any(1 not in pair and pair[0] != pair[1] for pair in zip(left, right, strict=True)):
        return None
    return [max(pair) for pair in zip(left, right, strict=True)]


def _holds(element: str, number: Any) -> bool:
    """True if a tensor of these elements stays one beside the number, and no check of the number is needed."""
    if type(number) is int:
        return element == "fp32" or element in ("int32", "int64") and -(1 << 31) <= number < 1 << 31
    return type(number) is float and element == "fp32"
