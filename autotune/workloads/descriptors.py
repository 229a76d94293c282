"""Built-in workloads seen from outside, without their kernels, torch and Triton, whose import takes seconds."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.db.records import Provenance
from autotune.errors import AutotuneError
from autotune.machine import Machine, versions
from autotune.problem import Problem
from autotune.workloads.interface import Workload
from autotune.workloads.provenance import provenance_of
from autotune.workloads.registry import installed_workload, workload
from autotune.workloads.sources import source_hash
from autotune.workloads.user_files import BUILT_IN

if TYPE_CHECKING:
    from autotune.search_spaces import Space  # loads NumPy, which a help page can do without

PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Descriptor:
    """A workload's name and problem; the rest is loaded when it is needed."""

    name: str
    problem_type: type[Problem]
    reference: str
    """The name by which it is loaded."""

    @property
    def about(self) -> str:
        """The first paragraph of the problem's docstring; empty for the one that ``dataclass`` makes."""
        written = self.problem_type.__doc__ or ""
        generated = written.startswith(f"{self.problem_type.__name__}(")
        return "" if generated else " ".join(written.split("\n\n")[0].split())

    def load(self) -> Workload:
        return workload(self.reference)

    def defaults(self, machine: Callable[[], Machine], world_size: Callable[[Machine], int]) -> dict[str, Any]:
        """Defaults of the fields that a user leaves out, as far as they are the same for all sizes. For a built-in
        workload without a look at the machine, which takes seconds. Empty where the workload has no default problem.
        """
        if self.reference in BUILT_IN:
            own = {field.name: field.default for field in fields(self.problem_type) if field.default is not MISSING}
            return own | dict(self.problem_type.of_default)
        try:
            here = machine()
            problem = self.load().default_problem(here, world_size(here))
        except AutotuneError:  # the command itself says it
            return {}
        return {field.name: getattr(problem, field.name) for field in fields(problem)}


def descriptor_of(name: str) -> Descriptor:
    """The descriptor of a workload named as for ``workload``, which it loads only if it is not a built-in one."""
    built_in = name.replace("-", "_")
    if built_in in BUILT_IN:
        return Descriptor(built_in, _problem_type(built_in), built_in)
    found = workload(name)
    return Descriptor(found.name, found.problem_type, name)


def installed_descriptor(name: str) -> Descriptor:
    """The descriptor of a workload of a stored name, which never loads a file. Raises UnknownWorkload."""
    if name not in BUILT_IN:
        installed_workload(name)
    return descriptor_of(name)


@functools.cache
def installed_provenance(name: str) -> Provenance:
    """``provenance_of`` the workload of a stored name. Raises UnknownWorkload."""
    if name not in BUILT_IN:
        return provenance_of(installed_workload(name))
    file = PACKAGE / "workloads" / "built_in" / f"{name}.py"
    return Provenance(source_hash=source_hash(file, ()), space=space_of(name).fingerprint(), **versions())


@functools.cache
def space_of(name: str) -> Space:
    """The space of a built-in workload, from where its modes are declared, or from its own module."""
    declared = (PACKAGE / "kernels" / name / "modes.py").is_file()
    space: Space = importlib.import_module(f"autotune.kernels.{name}.{'modes' if declared else 'space'}").SPACE
    return space


@functools.cache
def _problem_type(name: str) -> type[Problem]:
    found = vars(importlib.import_module(f"autotune.kernels.{name}.problem")).values()
    return next(kind for kind in found if isinstance(kind, type) and getattr(kind, "workload", None) == name)
