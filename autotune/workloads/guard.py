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

Fits = Callable[[Any], bool]

WHOLE = "whole_space"
"""Attribute of a workload whose ``space`` a recording has reduced: its methods answer for all of it, as they do for
built-in ones, and the tuner leaves out what the reduced one lacks."""


def guard(kind: type[Any]) -> None:
    """Put a guard before the methods of ``ANSWERS`` and of ``RESULTS`` that a class of workloads has or inherits, and
    those of ``RESULTS`` before its kernels' methods.
    """
    for name in ANSWERS:
        if (method := _unguarded(kind, name)) is not None:
            setattr(kind, name, _guarded(method, name))
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


def _checked(method: Callable[..., Any], fits: Fits, words: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        found = method(self, *arguments, **named)
        if not fits(found):
            raise WorkloadError(f"{type(self).__name__}.{method.__name__} gave {found!r}; it must return {words}")
        return found

    call.guarded = True  # type: ignore[attr-defined]
    return call


def _guarded(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    fits, words = ANSWERS[name]

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            found = method(self, *arguments, **named)
        except AutotuneError:
            raise
        except (Exception, SystemExit) as error:  # a user's method may raise anything
            raise WorkloadError(f"workload {self.name}: {name} raised {_told(error)}") from error
        if name == "predict":
            return found if fits(found) else None  # a model without an answer orders nothing, and ends no run
        if not fits(found) or (name == "default_problem" and not isinstance(found, self.problem_type)):
            raise WorkloadError(f"workload {self.name}: {name} gave {found!r}; it must return {words}")
        for where, config in CONFIGS.get(name, lambda found: {})(found).items():
            _check_config(self, where, config, *arguments, *named.values())
        return index(found) if name == "heap_bytes" else found

    call.guarded = True  # type: ignore[attr-defined]
    return call


def _told(error: BaseException) -> str:
    """The last line of its traceback, and the place where it was raised."""
    text = traceback.format_exception_only(error)[-1].strip()
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"


def _check_config(workload: Any, where: str, found: Config, task: Task[Any]) -> None:
    """Raises InvalidConfig where it is none of the space: it would be served, or measured, unseen by anybody."""
    violation = vars(workload).get(WHOLE, workload.space).violation(found, task)
    if violation is not None:
        raise InvalidConfig(f"workload {workload.name}: {where} is not valid for {task.problem}: {violation}")


def _a(kind: type[Any]) -> Fits:
    return lambda found: isinstance(found, kind)


def _listed(fits: Fits) -> Fits:
    return lambda found: isinstance(found, list | tuple) and all(map(fits, found))


def _named(fits: Fits) -> Fits:
    return lambda found: isinstance(found, dict) and all(map(fits, found.values()))


def _has(*names: str) -> Fits:
    return lambda found: all(hasattr(found, name) for name in names)


def _is_text(found: Any) -> bool:
    return isinstance(found, str) and bool(found)


ANSWERS: dict[str, tuple[Fits, str]] = {
    "default_problem": (_has("world_size"), "a problem of its problem_type"),
    "default_config": (_a(Config), "an autotune.config.Config"),
    "first_configs": (_listed(_a(Config)), "a list of Config"),
    "baselines": (_named(_a(Config)), "a dictionary of Config"),
    "tolerance": (_a(Tolerance), "a Tolerance"),
    "tolerance_of": (_a(Tolerance), "a Tolerance"),
    "unlike_measured": (lambda found: found is None or _is_text(found), "a reason in words, or None"),
    "source_hash": (_is_text, "a text"),
    "heap_bytes": (lambda found: isinstance(found, SupportsIndex) and index(found) >= 0, "a number of bytes"),
    "predict": (lambda found: isinstance(found, int | float) and math.isfinite(found) and found > 0, "microseconds"),
}
"""Checks of what a user's workload answers to the driver, and the words for it."""

CONFIGS: dict[str, Callable[[Any], dict[str, Config]]] = {
    "default_config": lambda found: {"default_config": found},
    "first_configs": lambda found: {f"first_configs[{place}]": each for place, each in enumerate(found)},
    "baselines": lambda found: {f"baselines[{name!r}]": each for name, each in found.items()},
}
"""Answers whose configs have to be of the space, each by its place."""

RESULTS: dict[str, tuple[Fits, str]] = {
    "operation": (_has("refresh", "prepare", "error"), "an Operation"),
    "prepare": (callable, "a function that enqueues one call"),
    "inputs": (_listed(_has("data_ptr")), "a list of tensors"),
    "outputs": (_listed(_has("data_ptr")), "a list of tensors"),
    "error": (_a(Error), "an Error"),
    "error_of": (_a(Error), "an Error"),
    "parts": (_named(callable), "functions by name"),
    "tensors": (dataclasses.is_dataclass, "its tensors_type, a dataclass of tensors"),
    "scratch": (lambda found: found is None or _has("poison")(found), "poison and tensors, or None"),
    "plan": (_listed(_has("kernel", "arguments")), "a list of Launch"),
    "run": (callable, "a function that enqueues one call"),
    "library": (callable, "a function that enqueues one call"),
}
"""Checks of what methods of a user's workload, operation and kernels give on a rank, and the words for it."""
