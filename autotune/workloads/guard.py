"""A user's workload: what its methods raise names them, and what they return is checked."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import traceback
from collections.abc import Callable
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

from autotune.config import Config
from autotune.errors import AutotuneError, InvalidConfig, WorkloadError
from autotune.task import Task
from autotune.workloads.tolerance import Error, Tolerance

WHOLE = "whole_space"
"""Attribute of a workload whose ``space`` a recording has reduced: its methods answer for all of it, as they do for
built-in ones, and the tuner leaves out what the reduced one lacks."""


def guard(kind: type[Any]) -> None:
    """Put a guard before the methods of ``CHECKS`` and of ``RESULTS`` that a class of workloads has or inherits, and
    those of ``RESULTS`` before its kernels' methods.
    """
    for name, check in CHECKS.items():
        if (method := _unguarded(kind, name)) is not None:
            setattr(kind, name, _guarded(method, check))
    guard_results(kind)
    kernels = type(inspect.getattr_static(kind, "kernels", None))
    if is_users(kernels):
        guard_results(kernels)


def guard_results(kind: type[Any]) -> None:
    """Check what methods of a user's class give that run on ranks; what they raise has its traceback there."""
    for name, (fits, words) in RESULTS.items():
        if (method := _unguarded(kind, name)) is not None:
            setattr(kind, name, _checked(method, fits, words))


def is_users(kind: type[Any]) -> bool:
    return kind.__module__ not in ("builtins", "autotune") and not kind.__module__.startswith("autotune.")


def _unguarded(kind: type[Any], name: str) -> Callable[..., Any] | None:
    method = inspect.getattr_static(kind, name, None)
    wanted = inspect.isfunction(method) and not hasattr(method, "guarded")
    return method if wanted and not getattr(method, "__isabstractmethod__", False) else None


def _checked(method: Callable[..., Any], fits: Callable[[Any], bool], words: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        found = method(self, *arguments, **named)
        if not fits(found):
            raise WorkloadError(f"{type(self).__name__}.{method.__name__} gave {found!r}; it must return {words}")
        return found

    call.guarded = True  # type: ignore[attr-defined]
    return call


def _guarded(method: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            found = method(self, *arguments, **named)
        except AutotuneError:
            raise
        except (Exception, SystemExit) as error:  # a user's method may raise anything
            raise WorkloadError(f"workload {self.name}: {method.__name__} raised {_told(error)}") from error
        if named:
            arguments = tuple(inspect.signature(method).bind(self, *arguments, **named).arguments.values())[1:]
        return check(self, found, *arguments)

    call.guarded = True  # type: ignore[attr-defined]
    return call


def _told(error: BaseException) -> str:
    """The last line of its traceback, and the place where it was raised."""
    text = traceback.format_exception_only(error)[-1].strip()
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"


def _problem(workload: Any, found: Any, *_: Any) -> Any:
    kind = workload.problem_type
    if not isinstance(found, kind):
        raise WorkloadError(
            f"workload {workload.name}: default_problem gave {found!r}; it must return a {kind.__name__}"
        )
    return found


def _default(workload: Any, found: Any, task: Task[Any]) -> Any:
    return _config(workload, "default_config", found, task)


def _first(workload: Any, found: Any, task: Task[Any]) -> Any:
    if not isinstance(found, list | tuple):
        raise WorkloadError(f"workload {workload.name}: first_configs gave {found!r}; it must return a list of Config")
    return [_config(workload, "first_configs", each, task) for each in found]


def _baselines(workload: Any, found: Any, task: Task[Any]) -> Any:
    if not isinstance(found, dict):
        raise WorkloadError(
            f"workload {workload.name}: baselines gave {found!r}; it must return a dictionary of Config"
        )
    return {name: _config(workload, f"baselines[{name!r}]", each, task) for name, each in found.items()}


def _config(workload: Any, where: str, found: Any, task: Task[Any]) -> Config:
    """Raises where it is none of the space: it would be served, or measured, unseen by anybody."""
    if not isinstance(found, Config):
        raise WorkloadError(f"workload {workload.name}: {where} gave {found!r}; expected an autotune.config.Config")
    space = vars(workload).get(WHOLE, workload.space)
    violation = space.violation(found, task)
    if violation is not None:
        raise InvalidConfig(f"workload {workload.name}: {where} is not valid for {task.problem}: {violation}")
    return found


def _prediction(workload: Any, found: Any, *_: Any) -> float | None:
    """None unless it is a time: a model without an answer orders nothing, and ends no run."""
    fits = isinstance(found, int | float) and math.isfinite(found) and found > 0
    return float(found) if fits else None


def _tolerance(workload: Any, found: Any, problem: Any, *of_config: Any) -> Tolerance:
    if not isinstance(found, Tolerance):
        method = "tolerance_of" if of_config else "tolerance"
        raise WorkloadError(f"workload {workload.name}: {method} gave {found!r}; it must return a Tolerance")
    return found


def _reason(workload: Any, found: Any, *_: Any) -> str | None:
    if found is not None and not (isinstance(found, str) and found):
        raise WorkloadError(
            f"workload {workload.name}: unlike_measured gave {found!r}; it must return a reason in words, or None"
        )
    return found


def _hash(workload: Any, found: Any, *_: Any) -> str:
    if not isinstance(found, str) or not found:
        raise WorkloadError(f"workload {workload.name}: source_hash gave {found!r}; it must return a text")
    return found


def _bytes(workload: Any, found: Any, *_: Any) -> int:
    if not isinstance(found, SupportsIndex) or index(found) < 0:
        raise WorkloadError(f"workload {workload.name}: heap_bytes gave {found!r}; it must return a number of bytes")
    return index(found)


CHECKS: dict[str, Callable[..., Any]] = {
    "default_problem": _problem,
    "default_config": _default,
    "first_configs": _first,
    "baselines": _baselines,
    "tolerance": _tolerance,
    "tolerance_of": _tolerance,
    "unlike_measured": _reason,
    "source_hash": _hash,
    "heap_bytes": _bytes,
    "predict": _prediction,
}
"""Checks of a method's result, by its name; called with the result and the method's own arguments, in their order."""


def _listed(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda found: isinstance(found, list | tuple) and all(map(fits, found))


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda found: all(hasattr(found, name) for name in names)


RESULTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "operation": (_has("refresh", "prepare", "error"), "an Operation"),
    "prepare": (callable, "a function that enqueues one call"),
    "inputs": (_listed(_has("data_ptr")), "a list of tensors"),
    "outputs": (_listed(_has("data_ptr")), "a list of tensors"),
    "error": (lambda found: isinstance(found, Error), "an Error"),
    "error_of": (lambda found: isinstance(found, Error), "an Error"),
    "parts": (lambda found: isinstance(found, dict) and all(map(callable, found.values())), "functions by name"),
    "tensors": (dataclasses.is_dataclass, "its tensors_type, a dataclass of tensors"),
    "scratch": (lambda found: found is None or _has("poison")(found), "poison and tensors, or None"),
    "plan": (_listed(_has("kernel", "arguments")), "a list of Launch"),
    "run": (callable, "a function that enqueues one call"),
    "library": (callable, "a function that enqueues one call"),
}
"""Checks of what methods of a user's workload, operation and kernels give on a rank, and the words for it."""
