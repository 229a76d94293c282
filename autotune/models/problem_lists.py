"""A list of problems as the YAML that ``tune fleet`` takes: one entry for those that differ in one size alone, of which
few are to be searched and the others verified.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import InputError
from autotune.fleet.problem_list import read_list
from autotune.machine import Machine
from autotune.models.forward import Call, Forward
from autotune.models.spans import to_search
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.problem import Problem
from autotune.results.figures import dashed

LISTS = (".yaml", ".yml")

PLACED = ("place", "way")
"""Fields of calls and of entries that say which are alternatives."""


def write_list(
    calls: Iterable[Call], regime: Regime = DEFAULT_REGIME, seconds: Mapping[Problem, float] | None = None
) -> str:  # fmt: skip
    """The text of the list; ``seconds`` are the problems' budgets, and those without are only verified."""
    alike: dict[str, tuple[dict[str, Any], str, list[int]]] = {}
    merged = _merged(calls)
    searched = to_search(dict.fromkeys(call.problem for call in merged))
    if seconds is not None:
        searched &= {*seconds}
    for call in merged:
        problem = call.problem
        entry = {"workload": dashed(problem.workload), **_said(problem)}
        along = next(reversed(problem.free), "")  # of decode the batch
        size = entry.get(along)
        if size is not None:
            entry[along] = []
        entry |= {"calls": call.count} | {name: value for name in PLACED if (value := getattr(call, name))}
        if regime is not DEFAULT_REGIME:
            entry["regime"] = regime.value
        if problem not in searched:
            entry["search"] = False
        elif seconds is not None:
            entry["budget"] = f"{seconds[problem]:.0f}s"
        _, _, sizes = alike.setdefault(json.dumps(entry), (entry, along, []))
        if size is not None:
            sizes.append(size)
    for entry, along, sizes in alike.values():
        if sizes:
            entry[along] = sizes if len(sizes) > 1 else sizes[0]
    entries = [entry for entry, _, _ in alike.values()]
    text: str = yaml.safe_dump({"problems": entries}, sort_keys=False, default_flow_style=None, width=120)
    return text


class ProblemList:
    """The problems of a file as one forward; raises InputError for a bad file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asked = read_list(path)

    def forward(self, regime: Regime, machine: Machine) -> Forward:
        """Raises InputError where the list asks for another regime or device."""
        other = next((each.regime for each in self._asked if each.regime not in (DEFAULT_REGIME, regime)), None)
        if other is not None:
            raise InputError(
                f"{self._path}: problems of the regime {other.value}, and --regime is {regime.value}: give --regime "
                f"{other.value}; a list may have one regime here"
            )
        device = next((each.device for each in self._asked if each.device not in (None, machine.device)), None)
        if device is not None:
            raise InputError(
                f"{self._path}: problems for the device {device!r}, and this machine has {machine.device!r}: leave "
                "them out, or give the list to tune fleet"
            )
        if not any(each.calls for each in self._asked):
            raise InputError(f"{self._path}: calls: 0 for every problem: a forward calls one at least")
        calls = (Call(each.place, each.problem, each.calls, each.place, each.way) for each in self._asked)
        return Forward(self._path.name, tuple(calls))

    @property
    def options(self) -> dict[Problem, dict[str, Any]]:
        """Budget, trials, effort and seed of each problem, where its entry names them."""
        return {each.problem: dict(each.options) for each in self._asked}

    @property
    def searched(self) -> set[Problem]:
        """The problems that are not only to be verified."""
        return {each.problem for each in self._asked if each.search}

    def check_plain(self, budget: bool) -> None:
        """Raise InputError where an entry says what a list made from this one would not; with ``budget`` it has
        budgets.
        """
        lost = {name for each in self._asked for name in dict(each.options)} - ({"budget"} if budget else set())
        if any(each.device is not None for each in self._asked):
            lost.add("device")
        if lost:
            raise InputError(
                f"{self._path}: --list would leave out {', '.join(sorted(lost))}; tune fleet takes the list as it is"
            )


def _merged(calls: Iterable[Call]) -> list[Call]:
    """Calls of one problem in one place as one, of whichever layers."""
    found: dict[Call, int] = {}
    for call in calls:
        key = Call("", call.problem, 0, call.place, call.way)
        found[key] = found.get(key, 0) + call.count
    return [dataclasses.replace(call, count=count) for call, count in found.items()]


def _said(problem: Problem) -> dict[str, Any]:
    """The fields that differ from their default, in the order in which people see them."""
    values = {field.name: getattr(problem, field.name) for field in problem.in_order()}
    defaults = {field.name: field.default for field in dataclasses.fields(problem)}
    return {name: value for name, value in values.items() if value != defaults[name]}
