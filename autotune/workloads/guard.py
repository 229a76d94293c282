"""A user's methods at the tuner's door: what they raise names them, and what they give is checked."""

from __future__ import annotations

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
from autotune.workloads.tolerance import Tolerance

WHOLE = "whole_space"
"""Attribute of a workload whose ``space`` a recording has reduced: its methods answer for all of it, as they do for
built-in ones, and the tuner leaves out what the reduced one lacks."""


def guard(kind: type[Any]) -> None:
    """Put a guard before the methods of ``CHECKS`` that a class of workloads has or inherits."""
    for name, check in CHECKS.items():
        method = inspect.getattr_static(kind, name)
        unguarded = inspect.isfunction(method) and not hasattr(method, "guarded")
        if unguarded and not getattr(method, "__isabstractmethod__", False):
            setattr(kind, name, _guarded(method, check))


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


def _default(workload: Any, found: Any, problem: Any, machine: Any) -> Any:
    return _config(workload, "default_config", found, problem, machine)


def _first(workload: Any, found: Any, problem: Any, machine: Any) -> Any:
    if not isinstance(found, list | tuple):
        raise WorkloadError(f"workload {workload.name}: first_configs gave {found!r}; it must return a list of Config")
    return [_config(workload, "first_configs", each, problem, machine) for each in found]


def _baselines(workload: Any, found: Any, problem: Any, machine: Any) -> Any:
    if not isinstance(found, dict):
        raise WorkloadError(
            f"workload {workload.name}: baselines gave {found!r}; it must return a dictionary of Config"
        )
    return {name: _config(workload, f"baselines[{name!r}]", each, problem, machine) for name, each in found.items()}


def _config(workload: Any, where: str, found: Any, problem: Any, machine: Any) -> Config:
    """Raises where it is none of the space: it would be served, or measured, unseen by anybody."""
    if not isinstance(found, Config):
        raise WorkloadError(f"workload {workload.name}: {where} gave {found!r}; expected an autotune.config.Config")
    space = vars(workload).get(WHOLE, workload.space)
    violation = space.violation(found, problem, machine)
    if violation is not None:
        raise InvalidConfig(f"workload {workload.name}: {where} is not valid for {problem}: {violation}")
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
