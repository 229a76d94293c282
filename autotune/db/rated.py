"""The rates of a kind of GPU for which no rules were made: as a study has measured them on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from autotune.db.records import Entry
from autotune.device_rates import ON_H200, is_measured
from autotune.task import Task

SIXTEEN_BITS = ("bf16", "fp16")


def rated(task: Task[Any], entries: Callable[[], Iterable[Entry]]) -> Task[Any]:
    """The task on a machine with the rates that the first of these entries has of as many ranks in 16 bits; of H100 and
    H200, whose rates are known, as it was. ``entries`` are those of its device, newest first.
    """
    if is_measured(task.machine) or task.machine.is_interpreter:
        return task
    for entry in entries():
        measured = entry.winner.roofline
        alike = entry.key.world_size == task.problem.world_size and entry.key.interconnect == task.machine.interconnect
        if alike and measured is not None and entry.key.fields.get("dtype") in SIXTEEN_BITS:
            rates = tuple((name, measured.rates[name]) for name in ON_H200 if name in measured.rates)
            return replace(task, machine=replace(task.machine, rates=rates))
    return task
