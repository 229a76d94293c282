"""A recording: the outcomes of every config of a reduced space on one machine, failures included."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from autotune.config import Config, Value
from autotune.db.records import Provenance
from autotune.errors import InputError
from autotune.machine import Machine
from autotune.outcome import Evaluation, Latency
from autotune.problem import Problem
from autotune.search_spaces import Space
from autotune.timeline import Timeline
from autotune.workloads import Workload
from autotune.workloads.guard import WHOLE

Origin = Literal["measured", "synthetic"]
"""``synthetic``: computed by a formula, for tests; says nothing about any machine."""


@dataclass(frozen=True)
class Recording:
    """A reduced space, measured exhaustively."""

    workload: str
    problem: Mapping[str, Any]
    """The problem's fields by name."""
    machine: Machine
    provenance: Provenance
    recorded_at: datetime
    """UTC."""
    origin: Origin
    restriction: Mapping[str, Sequence[Value]]
    """The reduced dimensions with their remaining values."""
    dimensions: Mapping[str, Sequence[Value]]
    """Every dimension of the reduced space with its values, in the space's order."""
    evaluations: Mapping[Config, Evaluation]
    """In the order of the space's enumeration; by-rank latencies are not kept."""
    lifted: Sequence[str] = ()
    """Constraints of the workload's space that were dropped for the recording."""
    parts: Mapping[str, Latency] = field(default_factory=dict)
    """The operation's parts alone."""
    timeline: Timeline = field(default_factory=dict)
    """Traced calls of the library's way and of the fastest configs, by their JSON."""

    @property
    def optimum(self) -> float:
        """The lowest latency, in microseconds; raises InputError if nothing was measured."""
        found = [e.latency.median for e in self.evaluations.values() if e.latency is not None]
        if not found:
            raise InputError("the recording has no config that could be measured: record it again")
        return min(found)

    def problem_of(self, workload: Workload) -> Problem:
        """The problem as the workload's own type; raises InvalidProblem if its fields have changed since."""
        return workload.problem_type.from_dict(self.problem)

    def space_of(self, workload: Workload) -> Space:
        """The reduced space, from the workload's own; raises InputError if that has other dimensions.

        A constraint that is new forbids some recorded configs, one that is gone allows some that were not recorded:
        both remain usable, for ``Replay`` calls the latter invalid.
        """
        space = workload.space
        modes = map(str, self.dimensions.get("mode", ()))
        carried = {"mode"}.union(*({d.name for d in space.dimensions_of(mode)} for mode in modes))
        apart = sorted((carried - self.dimensions.keys()) | (self.dimensions.keys() - space.dimensions.keys()))
        if workload.name != self.workload or apart:
            why = f"the dimensions {', '.join(apart)} are not in both" if apart else "it is another workload"
            raise InputError(
                f"a recording of {self.workload} does not fit the space of {workload.name}: {why}; record it again"
            )
        return space.restricted(self.dimensions, self.lifted)

    def reduced(self, workload: Workload) -> Workload:
        """The workload with the reduced space instead of its own, for the tuning loop over a ``Replay``."""
        found = copy.copy(workload)
        vars(found)[WHOLE], vars(found)["space"] = workload.space, self.space_of(workload)
        return found
