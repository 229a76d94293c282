"""The key of a kernel's tuned config: its key arguments and dtypes, and a hash of its sources."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

from autotune.db import CacheKey, Provenance
from autotune.errors import InvalidArguments
from autotune.machine import Machine, versions
from autotune.outcome import Regime

TuningKey = tuple[Any, ...]
"""Triton's own key: the key arguments' values, then the dtype of every argument that has one."""

PLAIN = (bool, int, float, str)
"""Types of a constant that is only annotated as ``tl.constexpr``."""

Reader = Callable[[tuple[Any, ...]], TuningKey]


class Call:
    """A call, as far as a config may depend on it: a kernel's key arguments by name, as attributes, and its tensors'
    ``dtypes``.

    Constraints of a space and a callable default see it as their problem: ``s.problem.M``.
    """

    def __init__(self, kernel: str, values: Mapping[str, Any], dtypes: Mapping[str, str]) -> None:
        """``dtypes`` by argument name, such as ``torch.float16``; raises InvalidArguments for unsupported values."""
        self.workload = kernel
        self.values = {name: _plain(name, value) for name, value in values.items()}
        self.dtypes = dict(dtypes)

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = self.__dict__.get("values", {})
        if name not in values:
            raise AttributeError(f"{name} is not a key argument of this kernel; key arguments: {', '.join(values)}")
        return values[name]

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces; dtypes as ``ARGUMENT.dtype``. Part of the cache key."""
        fields = {**self.values, **{f"{name}.dtype": dtype for name, dtype in self.dtypes.items()}}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in json.loads(self.to_json()).items())


def call_of(kernel: str, named: Mapping[str, Any], keys: Sequence[str]) -> Call:
    """The call with these arguments by name."""
    dtypes = {name: str(value.dtype) for name, value in named.items() if hasattr(value, "dtype")}
    return Call(kernel, {name: named[name] for name in keys if name in named}, dtypes)


def tuning_key(named: Mapping[str, Any], keys: Sequence[str]) -> TuningKey:
    """Triton's own key of a call, in Triton's own order."""
    dtypes = (str(value.dtype) for value in named.values() if hasattr(value, "dtype"))
    return (*(named[name] for name in keys if name in named), *dtypes)


def key_reader(names: Sequence[str], values: Sequence[Any], keys: Sequence[str]) -> Reader:
    """A fast reader of keys for calls that pass the same arguments in the same way; it takes their values in order.

    Numbers are assumed to stay numbers: only the key arguments, and the dtypes of the other arguments, are read.
    """
    parts = [f"v[{at}]" for at, name in enumerate(names) if name in keys]
    parts += [f"getattr(v[{at}], 'dtype', None)" for at, v in enumerate(values) if not isinstance(v, int | float | str)]
    # Generated, as Triton generates its binders: picking values in a loop takes longer than a launch may.
    reader: Reader = eval(f"lambda v: ({''.join(part + ', ' for part in parts)})")
    return reader


def cache_key(call: Call, world_size: int, machine: Machine) -> CacheKey:
    graph = Regime.GRAPH.value  # candidates are ranked by the device's time
    return CacheKey(
        call.workload, call.to_json(), world_size, machine.device, machine.arch, machine.interconnect, graph
    )


def provenance_of(kernel: Any, fingerprint: str) -> Provenance:
    """The provenance of an entry: the kernel's sources, the candidates' fingerprint, the versions."""
    return Provenance(source_hash=source_hash(kernel), space=fingerprint, **versions())


def origin_of(kernel: Any) -> str:
    """``FILE:NAME`` of a kernel, without the file's folder; for people."""
    while not inspect.isfunction(kernel):
        kernel = kernel.fn
    return f"{Path(kernel.__code__.co_filename).name}:{kernel.__qualname__.rpartition('.')[2]}"


def source_hash(kernel: Any) -> str:
    """A hash of the sources of a kernel, of the device functions that it calls, and of heuristics around it."""
    digest = hashlib.sha256()
    for part in _sources(kernel):
        digest.update(part.encode())
    return digest.hexdigest()[:16]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, triton.language.constexpr):
        value = value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | triton.language.dtype):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(name, each) for each in value]
    raise InvalidArguments(
        f"key argument {name} is a {type(value).__name__}: allowed: numbers, strings, flags, None, dtypes and "
        "tuples of these; take it out of key="
    )


def _sources(kernel: Any) -> Iterator[str]:
    while not isinstance(kernel, JITFunction) and not inspect.isfunction(kernel):
        for heuristic in getattr(kernel, "values", {}).values():
            yield from _host_sources(heuristic, set())
        kernel = kernel.fn
    compiled = isinstance(kernel, JITFunction)
    if compiled:
        yield kernel.cache_key  # of its helpers too, and of constants that are a ``tl.constexpr``
    for function in _called(kernel.fn if compiled else kernel, set()):
        if not compiled:
            yield _text(function)
        yield from _constants(_referenced(function), compiled)


def _text(function: Any) -> str:
    """An interpreted kernel's source; Triton itself refuses to compile one without."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise InvalidArguments(
            f"{function.__qualname__}: {error}, and a tuned config would be served after the kernel has changed; "
            "define it in a file or a notebook's cell, not by exec or python -c"
        ) from error


def _host_sources(heuristic: Any, seen: set[Any]) -> Iterator[str]:
    """The sources of a heuristic and of the functions of its own folder or package that it calls, and the constants
    that these read; a callable without a source is identified by its name.
    """
    if isinstance(heuristic, functools.partial):
        yield from _constants(
            [*((str(at), value) for at, value in enumerate(heuristic.args)), *heuristic.keywords.items()]
        )
        heuristic = heuristic.func
    function = inspect.unwrap(heuristic)
    try:
        yield inspect.getsource(function)
    except (OSError, TypeError):
        yield getattr(function, "__qualname__", type(function).__qualname__)
    if not inspect.isfunction(function) or function in seen:
        return
    seen.add(function)
    referenced = _referenced(function)
    yield from _constants(referenced)
    for _, value in referenced:
        if inspect.isfunction(value) and _home(function) & _home(value):
            yield from _host_sources(value, seen)


def _home(function: Any) -> set[str]:
    """The folder and the package in which a Python function is defined."""
    return {str(Path(function.__code__.co_filename).parent), str(function.__module__).partition(".")[0]}


def _constants(values: Iterable[tuple[str, Any]], compiled: bool = False) -> Iterator[str]:
    """The values that are plain; of a compiled kernel Triton itself counts those that are a ``tl.constexpr``."""
    for name, value in values:
        if isinstance(value, triton.language.constexpr) and not compiled:
            yield f"{name}={value.value!r}"
        elif isinstance(value, PLAIN):
            yield f"{name}={value!r}"


def _called(function: Any, seen: set[Any]) -> Iterator[Any]:
    """The function and all device functions that it calls, each once."""
    if function in seen:
        return
    seen.add(function)
    yield function
    for _, value in _referenced(function):
        is_kernel = isinstance(value, JITFunction) or hasattr(value, "rewrite")  # the interpreter's
        if is_kernel and inspect.isfunction(getattr(value, "fn", None)):
            yield from _called(value.fn, seen)


def _referenced(function: Any) -> list[tuple[str, Any]]:
    """The globals and free variables that a function names, including names in modules, by name."""
    names, scope = _names(function.__code__), function.__globals__
    found = [(name, scope[name]) for name in names if name in scope]
    found += inspect.getclosurevars(function).nonlocals.items()
    for module in [value for _, value in found if isinstance(value, ModuleType)]:
        found += [(name, getattr(module, name)) for name in names if hasattr(module, name)]
    return sorted(found, key=lambda pair: pair[0])


def _names(code: CodeType) -> dict[str, None]:
    """All names in code, those of its lambdas and comprehensions too."""
    names = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        names |= _names(inner) if isinstance(inner, CodeType) else {}
    return names
