"""Saves most of the time of Triton's interpreter: it describes, checks and converts far more than NumPy computes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "__add__": np.add, "__sub__": np.subtract, "__mul__": np.multiply, "__truediv__": np.divide,
    "__radd__": np.add, "__rsub__": lambda one, other: np.subtract(other, one), "__rmul__": np.multiply,
    "__floordiv__": lambda one, other: (one - np.fmod(one, other)) // other, "__mod__": np.fmod,
    "__lt__": np.less, "__le__": np.less_equal, "__gt__": np.greater, "__ge__": np.greater_equal,
    "__eq__": np.equal, "__ne__": np.not_equal, "__and__": np.bitwise_and, "__or__": np.bitwise_or,
    "__lshift__": np.left_shift, "__rshift__": np.right_shift,
}  # fmt: skip
"""NumPy's function for each operator of Triton's tensors."""

FLOATS = {"fp16", "fp32", "fp64"}
SIGNED, UNSIGNED = ({f"{sign}int{bits}" for bits in (8, 16, 32, 64)} for sign in ("", "u"))
"""Numbers that NumPy promotes as Triton does, each kind within itself."""


def hasten(interpreter: Any) -> None:
    """Leave out what the interpreter does in vain.

    At every operation on integers it computes whether that overflows, for an assertion that is off. For every look at
    its table of element types it makes the table. Every tensor describes its shape anew. bf16 becomes fp32, and back,
    field by field. Eight functions find out what NumPy is to compute, for each pair of operands again.
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
    _launch(interpreter)
    _replace_once(interpreter)
    _remember_shapes(interpreter.tl.core)
    _shift_bf16(interpreter)
    _cast(interpreter)
    _load(interpreter)
    _make_less(interpreter)


class _Inspect:
    """Python's ``inspect``, which reads a kernel's parameters once."""

    getfullargspec = staticmethod(functools.cache(inspect.getfullargspec))
    get_annotations = staticmethod(functools.cache(inspect.get_annotations))
    _signature = staticmethod(functools.cache(inspect.signature))

    def getcallargs(self, function: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        bound = self._signature(function).bind(*arguments, **named)
        bound.apply_defaults()
        return bound.arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)


def _launch(interpreter: Any) -> None:
    """A launch takes its arguments as they are: they lie on the host. Its kernel's parameters and their types are
    described once.
    """
    import torch

    interpreter.inspect = _Inspect()
    interpreter.GridExecutor._init_args_hst = lambda _, arguments, named: (arguments, named)
    convert, tl, handle = interpreter._implicit_cvt, interpreter.tl, interpreter.TensorHandle

    @functools.cache
    def pointer(dtype: Any) -> Any:
        return tl.str_to_ty(interpreter.triton.runtime.jit.mangle_type(torch.empty(0, dtype=dtype)), None)

    def implicit(argument: Any) -> Any:
        if type(argument) is int and -(1 << 31) <= argument < 1 << 31:
            return tl.tensor(handle(np.array([argument], dtype=np.int32), tl.int32), tl.int32)
        if type(argument) is torch.Tensor:
            type_ = pointer(argument.dtype)
            return tl.tensor(handle(np.array([argument.data_ptr()], dtype=np.uint64), type_), type_)
        return convert(argument)

    interpreter._implicit_cvt = implicit


class _Replaced:
    """Attributes, as (object, name, original, replacement), to be replaced for a launch."""

    def __init__(self, changes: list[tuple[Any, str, Any, Any]], missing: Any) -> None:
        self._changes, self._missing = changes, missing

    def replace(self) -> None:
        for place, name, _, new in self._changes:
            setattr(place, name, new)

    def restore(self) -> None:
        for place, name, original, _ in reversed(self._changes):
            if original is self._missing:
                delattr(place, name)
            else:
                setattr(place, name, original)


def _replace_once(interpreter: Any) -> None:
    """Look through Triton's language once for what has to be replaced: the interpreter does at every launch, and, in
    vain, at every call of a device function. What it puts in a function's place checks every call's arguments twice.
    """
    tl, semantic, replace = interpreter.tl, interpreter.interpreter_semantic, interpreter._patch_lang
    checked, missing = tl.core.load.__code__, interpreter._MISSING
    nothing = _Replaced([], missing)
    replaced: dict[tuple[Any, ...], _Replaced] = {}

    def replace_one(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        function = member.__wrapped__ if member.__code__ is checked else member

        def call(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return function(*arguments, **named)

        compute = OPERATORS.get(name) if place is tl.core.tensor else None
        scope.set_attr(place, name, _operator(interpreter, compute, call) if compute else call)

    @functools.cache
    def languages(function: Any) -> tuple[Any, ...]:
        return tuple(value for value in function.__globals__.values() if value is tl or value is tl.core)

    def replace_once(function: Any) -> Any:
        here = languages(function)
        if not any(tl.core.is_builtin(each) for part in here or [tl] for each in (part.load, part.tensor.to)):
            return nothing  # the launch that replaced them puts them back
        if here not in replaced:
            scope = replace(function)
            replaced[here] = _Replaced([(*change, vars(change[0])[change[1]]) for change in scope._changes], missing)
            return scope
        replaced[here].replace()
        return replaced[here]

    interpreter._patch_attr, interpreter._patch_lang = replace_one, replace_once


def _operator(interpreter: Any, compute: Callable[[Any, Any], Any], triton: Any) -> Any:
    """An operator of tensors that goes to NumPy at once. Triton's own computes the first of each pair of types and
    shapes, and so tells the result's.
    """
    core, handle = interpreter.tl.core, interpreter.TensorHandle
    tensor, constexpr = core.tensor, core.constexpr
    known: dict[Any, Any] = {}

    def operator(self: Any, other: Any) -> Any:
        if type(other) is constexpr:
            other = other.value
        key: tuple[Any, ...]
        if type(other) is tensor:
            value = other.handle.data
            key = self.dtype.name, other.dtype.name, id(self.shape), id(other.shape)  # shapes are described once
        else:
            value = other
            key = self.dtype.name, type(other), id(self.shape)
            if not _holds(key[0], other):
                return triton(self, other)
        if key not in known:
            result = triton(self, other)
            element = result.handle.data.dtype
            function = _function(compute, self.dtype, key[1], element)
            known[key] = function and (function, element, result.handle.dtype, result.type)
            return result
        if known[key]:
            function, element, dtype, type_ = known[key]
            data = function(self.handle.data, value)
            if data.dtype == element:
                return tensor(handle(data, dtype), type_)
        return triton(self, other)

    return operator


def _function(compute: Any, dtype: Any, other: Any, element: Any) -> Any:
    """NumPy's function for a tensor of this type and a number or other elements; None where Triton does more."""
    if dtype.is_ptr():
        size = max(1, dtype.element_ty.primitive_bitwidth // 8)
        if compute is not np.add:
            return None
        if other is int:
            return lambda pointers, offset: pointers + np.uint64(size * offset % (1 << 64))
        return lambda pointers, offsets: pointers + size * offsets.astype(np.uint64)
    if dtype.name == other == "int1":
        return compute if compute in (np.bitwise_and, np.bitwise_or) else None
    if isinstance(other, type) or any({dtype.name, other} <= kind for kind in (FLOATS, SIGNED, UNSIGNED)):
        return compute
    if {dtype.name, other} <= SIGNED | UNSIGNED and compute in (np.add, np.subtract, np.multiply):
        return lambda one, two: compute(one.astype(element), two.astype(element))
    return None


def _cast(interpreter: Any) -> None:
    """Convert elements at once where that is one conversion of NumPy's, or none; the first of a kind as Triton does."""
    semantic, tensor = interpreter.interpreter_semantic, interpreter.tl.core.tensor
    triton, to_tensor = semantic.cast, semantic.to_tensor
    known: dict[Any, Any] = {}

    def cast(input: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
        target = dst_ty.scalar
        if input.dtype is target:
            return input
        key = input.dtype.name, target.name, id(input.shape)
        convert, kind = known.get(key, (None, None))
        if convert and fp_downcast_rounding is None:
            return tensor(convert(input.handle, kind), kind)
        result = triton(input, dst_ty, fp_downcast_rounding)
        known[key] = _conversion(interpreter.interpreter_builder, input.dtype, target), result.type
        return result

    semantic.cast = cast
    semantic.to_tensor = lambda x, check_type=True: x if type(x) is tensor else to_tensor(x, check_type)


def _conversion(builder: Any, source: Any, target: Any) -> Any:
    """The one step from these elements to others; None if Triton takes several."""
    names, integers = {source.name, target.name}, SIGNED | UNSIGNED
    if source.is_ptr() or target.is_ptr():
        pointers = all(each.is_ptr() or each.name in ("int64", "uint64") for each in (source, target))
        return builder.create_bitcast if pointers else None
    if source.name in {"int1", *integers} and target.name in {"fp32", *integers}:
        return builder.cast_impl
    return builder.cast_impl if names <= FLOATS or names == {"bf16", "fp32"} else None


def _load(interpreter: Any) -> None:
    """Masks of nothing but true, and zeros for what is masked, are made once for each shape; Triton's own load is the
    first of each pointer type and shape, and those whose mask or other values have to be spread or converted.
    """
    semantic, builder, tl = interpreter.interpreter_semantic, interpreter.interpreter_builder, interpreter.tl
    handle, triton = interpreter.TensorHandle, semantic.load
    known: dict[Any, Any] = {}

    @functools.cache
    def everything(shape: Any) -> Any:
        return handle(np.ones(shape, dtype=bool), tl.int1)

    @functools.cache
    def zeros(shape: Any, element: Any) -> Any:
        return handle(np.zeros(shape, dtype=interpreter._get_np_dtype(element)), element)

    def masks(pointers: Any, mask: Any, other: Any) -> tuple[Any, Any] | None:
        data, element = pointers.handle.data, pointers.dtype.element_ty
        if mask is None:
            return None if other is not None else (everything(data.shape), zeros(data.shape, element))
        if mask.shape is not pointers.shape:
            return None
        if other is None or not (other.type.is_block() or other.handle.data.view(np.uint8).any()):
            return mask.handle, zeros(data.shape, element)
        return (mask.handle, other.handle) if other.shape is mask.shape and other.dtype is element else None

    def load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        key = pointers.dtype.name, id(pointers.shape)
        pair = masks(pointers, mask, other) if key in known else None
        if pair is None:
            result = triton(pointers, mask, other, *rest)
            if pointers.dtype.element_ty.name != "int1":  # which is loaded as another type
                known[key] = result.type
            return result
        return tl.tensor(builder.create_masked_load(pointers.handle, *pair, None, rest[-1]), known[key])

    if len(inspect.signature(triton).parameters) == 5:  # as from Triton 3.9 on
        semantic.load = load


def _make_less(interpreter: Any) -> None:
    """Leave out a check of each operation's result, and what changes nothing."""
    builder, handle, tl = type(interpreter.interpreter_builder), interpreter.TensorHandle, interpreter.tl

    def init(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr

    def create_expand_dims(self: Any, tile: Any, axis: int) -> Any:
        shape = tile.data.shape
        return handle(tile.data.reshape(*shape[:axis], 1, *shape[axis:]), tile.dtype.scalar)

    spread, unwrap = interpreter.interpreter_semantic.broadcast_impl_value, tl.core._unwrap_if_constexpr
    plain = {tl.tensor, int, float, bool, type(None)}
    interpreter.interpreter_semantic.broadcast_impl_value = lambda one, other: (
        (one, other) if one.shape is other.shape else spread(one, other)
    )
    tl.core._unwrap_if_constexpr = lambda value: value if type(value) in plain else unwrap(value)
    handle.__init__ = init
    builder.create_expand_dims = create_expand_dims
    core = tl.core
    if hasattr(core, "_normalize_cache_policy"):  # from Triton 3.9 on
        core._normalize_cache_policy = functools.lru_cache(1 << 6)(core._normalize_cache_policy)


def _shift_bf16(interpreter: Any) -> None:
    """bf16 is the upper half of an fp32."""
    tl, handle, builder = interpreter.tl, interpreter.TensorHandle, type(interpreter.interpreter_builder)
    cast = builder.cast_impl

    def cast_impl(self: Any, source: Any, kind: Any) -> Any:
        pair = source.dtype.scalar, kind.scalar
        if pair == (tl.bfloat16, tl.float32):
            return handle((source.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        if pair == (tl.float32, tl.bfloat16):
            return handle((source.data.view(np.uint32) >> 16).astype(np.uint16), tl.bfloat16)
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


def _holds(element: str, number: Any) -> bool:
    """True if a tensor of these elements stays one beside the number, and no check of the number is needed."""
    if type(number) is int:
        small = -(1 << 31) <= number < 1 << 31
        return element == "fp32" or small and (element in ("int32", "int64") or element.startswith("pointer"))
    return type(number) is float and element == "fp32"
