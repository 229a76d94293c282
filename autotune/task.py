"""A task: a problem on a machine, all that a config is chosen by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from autotune.machine import Machine

P_co = TypeVar("P_co", covariant=True)


@dataclass(frozen=True)
class Task(Generic[P_co]):
    problem: P_co
    machine: Machine
