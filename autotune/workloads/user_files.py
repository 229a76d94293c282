"""A user's own files: loaded once, searched for workloads, and named so that every process finds the same."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from autotune.errors import InputError
from autotune.problem import Problem
from autotune.workloads.interface import Workload

BUILT_IN = {
    file.stem: f"autotune.workloads.built_in.{file.stem}:WORKLOAD"
    for file in sorted((Path(__file__).parent / "built_in").glob("[!_]*.py"))
}
"""Each file there is a workload, by its name."""

USER = "autotune_user_"
"""Before the name of a module that is loaded from a user's file."""

_REFERENCES: dict[Workload, str] = {}
"""Workloads loaded as FILE:CLASS, with the file's whole path."""

_MADE: dict[tuple[Path, str], tuple[ModuleType, object, Workload]] = {}
"""Modules by file and name: the module, what has the name there, and the workload made of it."""


def is_reference(name: str) -> bool:
    """True for FILE:CLASS, false for a workload's name."""
    return ":" in name or name.endswith(".py")


def from_reference(reference: str) -> Workload:
    """The workload FILE:CLASS, made without arguments and once in a process; FILE:NAME may be an instance too.

    Raises InputError where the file cannot be loaded or has no such workload, or the class lacks something.
    """
    path, colon, name = reference.rpartition(":")
    file = _existing(path if colon else reference)
    return _made(file, name if colon else "")


def reference_of(workload: Workload) -> str:
    """The name by which another process on this machine finds the workload: FILE:CLASS if it came so, else its name."""
    return _REFERENCES.get(workload, workload.name)


def origin_of(workload: Workload) -> str:
    """``FILE:CLASS`` for people, without the file's folder; MODULE:CLASS of an installed plug-in; empty if built in."""
    if workload.name in BUILT_IN:
        return ""
    kind = type(workload)
    module = sys.modules.get(kind.__module__)
    loaded = kind.__module__ == "__main__" or kind.__module__.startswith(USER)
    file = getattr(module, "__file__", None) if loaded else None
    return f"{Path(file).name if file else kind.__module__}:{kind.__qualname__}"


def instances(path: str) -> list[Workload]:
    """The workloads that a file holds at its top level, at least one: its instances, else one of each class that lacks
    nothing, and whose name no other class has. Raises InputError.
    """
    module = _module(_existing(path))
    found = {name: value for name, value in vars(module).items() if isinstance(value, Workload)}
    for name, value in found.items():
        _check(value, f"{path}:{name}")
    return list(found.values()) or list(_of_classes(module, path).values())


def _of_classes(module: ModuleType, path: str) -> dict[str, Workload]:
    """A workload of each class, by its name."""
    found: dict[str, Workload] = {}
    for kind in [value for value in vars(module).values() if _is_class(value, module)]:
        if inspect.isabstract(kind) or not hasattr(kind, "problem_type"):
            continue  # a base of others
        reference = f"{path}:{kind.__name__}"
        made = _instance(kind, reference)
        _check(made, reference)
        other = found.setdefault(made.name, made)
        if type(other) is not kind:
            raise InputError(
                f"workload file {path}: {type(other).__name__} and {kind.__name__} are both named {made.name}; choose "
                f"one by a line at its end, WORKLOAD = {kind.__name__}()"
            )
    if not found:
        raise InputError(f"workload file {path} defines no workload: a class derived from Workload, or an instance")
    return found


def _existing(path: str) -> Path:
    try:
        file = Path(path).expanduser().resolve()
        there = file.is_file()
    except (OSError, RuntimeError) as error:  # a loop of links, too long a name; a home of nobody
        raise InputError(f"workload file {path}: {getattr(error, 'strerror', None) or error}") from error
    if not there:
        raise InputError(f"workload file {path}: no such file")
    if file.suffix != ".py":
        raise InputError(f"workload file {path}: not a Python file")
    return file


def _module(file: Path) -> ModuleType:
    """The file as a module: the one that is loaded already, as the main script maybe, so that its types are the same.

    Its folder joins the end of the search path, for what it imports from beside it.
    """
    for module in list(sys.modules.values()):
        place = getattr(module, "__file__", None)
        if place and os.path.basename(place) == file.name and Path(place).resolve() == file:  # thousands of modules
            return module
    name = f"{USER}{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, file  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the file prints is not a command's data
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        del sys.modules[name]
        raise InputError(f"workload file {file}{_line(error, file)}: {type(error).__name__}: {error}") from error
    return module


def _line(error: BaseException, file: Path) -> str:
    """The line of the file that raised it, if known."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""


def _made(file: Path, name: str) -> Workload:
    """Once, until its module is reloaded: the new class's problems are of another type, its results of other code."""
    known = _MADE.get((file, name))
    if known is not None:
        module, value, found = known
        if sys.modules.get(module.__name__) is module and getattr(module, name, None) is value:
            return found
    module = _module(file)
    found = _found(module, file, name)
    _MADE[file, name] = module, getattr(module, name), found
    return found


def _found(module: ModuleType, file: Path, name: str) -> Workload:
    reference = f"{file}:{name}"
    if not hasattr(module, name):
        classes = [value.__name__ for value in vars(module).values() if _is_class(value, module)]
        there = f"write {file.name}:{' or :'.join(classes)}" if classes else "it defines no class derived from Workload"
        raise InputError(f"workload file {file} {f'has no {name}' if name else 'needs a class behind it'}; {there}")
    found = getattr(module, name)
    if isinstance(found, type) and issubclass(found, Workload):
        found = _instance(found, reference)
    if not isinstance(found, Workload):
        kind = "a class of another kind" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise InputError(f"workload {reference} is {kind}; it must be a class derived from autotune.workloads.Workload")
    _check(found, reference)
    _REFERENCES[found] = reference
    return found


def _is_class(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and issubclass(value, Workload) and value.__module__ == module.__name__


def _instance(kind: type[Workload], reference: str) -> Workload:
    if inspect.isabstract(kind):
        raise InputError(f"workload {reference} must also define {', '.join(sorted(kind.__abstractmethods__))}")
    try:
        return kind()
    except (Exception, SystemExit) as error:  # a user's class may raise anything
        raise InputError(f"workload {reference} cannot be instantiated: {type(error).__name__}: {error}") from error


def _check(found: Workload, reference: str) -> None:
    """Raise InputError if an attribute is missing, does not fit, or is a built-in workload's."""
    from autotune.search_spaces import Space

    _check_problem(getattr(found, "problem_type", None), reference)
    _check_name(found, reference)
    if not isinstance(getattr(found, "space", None), Space):
        raise InputError(f"workload {reference}: space must be an autotune.search_spaces.Space")
    if type(found).__hash__ is None:
        raise InputError(f"workload {reference} cannot be hashed; write @dataclass(eq=False), or leave __eq__ out")
    sources = found.sources
    if not isinstance(sources, tuple | list) or not all(isinstance(each, str) for each in sources):
        raise InputError(f"workload {reference}: sources is {sources!r}; it must be a tuple of modules' names")
    if found.name in BUILT_IN and type(found).__module__ != BUILT_IN[found.name].partition(":")[0]:
        raise InputError(
            f"workload {reference} has the name of a built-in workload, {found.name}; give it another name"
        )


def _check_problem(kind: object, reference: str) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Problem)):
        raise InputError(f"workload {reference}: problem_type is {kind!r}; it must be a class derived from Problem")
    if any(isinstance(value, dataclasses.Field) for value in vars(kind).values()):
        raise InputError(f"workload {reference}: {kind.__name__} lacks @dataclass(frozen=True, kw_only=True) before it")
    plain = [field.name for field in dataclasses.fields(kind) if "kind" not in field.metadata]
    if plain:
        raise InputError(
            f"workload {reference}: {', '.join(plain)} of {kind.__name__} is a plain field; declare it with size(), "
            "choice() or flag() from autotune.problem"
        )


def _check_name(found: Workload, reference: str) -> None:
    name, says = getattr(found, "name", None), getattr(found.problem_type, "workload", None)
    if name != says or not name or not isinstance(name, str):
        raise InputError(
            f"workload {reference} is named {name!r}, its problem says workload = {says!r}; they must be equal words"
        )
