"""The review of a file's entries: each is new, known, in conflict or refused, with the reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from autotune.db import CacheKey, Entry, Provenance, Store
from autotune.errors import InvalidProblem, UnknownWorkload
from autotune.machine import H100, INTERPRETED, MI300X, MI350X, Machine, versions
from autotune.outcome import Regime, alike
from autotune.search_spaces import Space
from autotune.task import Task
from autotune.text import microseconds
from autotune.workloads import Workload, installed_workload, provenance_of

KNOWN = {machine.arch: machine for machine in (H100, MI300X, MI350X, INTERPRETED)}
"""Stand-ins for other machines, to check a config against its space."""


class State(StrEnum):
    NEW = "new"
    SAME = "there already"
    REPLACES = "replaces"
    CONFLICT = "needs --replace"
    INVALID = "refused"
    UNKNOWN = "unknown workload"

    @property
    def is_taken(self) -> bool:
        """True if the entry goes into the store."""
        return self in (State.NEW, State.REPLACES)

    @property
    def is_left_out(self) -> bool:
        """True if the store will lack an entry of the file."""
        return self in (State.CONFLICT, State.INVALID, State.UNKNOWN)


@dataclass(frozen=True)
class Review:
    """One entry's state with a one-line reason, or none."""

    entry: Entry
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Here:
    """The store's content by key and provenance: entries, and the ids of running studies."""

    entries: Mapping[tuple[CacheKey, Provenance], Entry]
    running: Mapping[tuple[CacheKey, Provenance], int]

    @classmethod
    def of(cls, store: Store | None) -> Self:
        """The store's content now; None is a database that does not exist yet."""
        if store is None:
            return cls({}, {})
        return cls(
            {(entry.key, entry.provenance): entry for entry in store.entries()},
            {(study.key, study.provenance): study.id for study in store.studies("running")},
        )


def review(entries: Sequence[Entry], here: Here, machine: Machine, *, replace: bool = False) -> list[Review]:
    """Review each entry for this machine; changes nothing."""
    return [_review(entry, here, machine, replace) for entry in entries]


def take(store: Store, reviews: Sequence[Review]) -> None:
    """Store the accepted entries: all of them, or none if that fails. Raises StoreError."""
    store.adopt([(each.entry, each.state is State.REPLACES) for each in reviews if each.state.is_taken])


def _review(entry: Entry, here: Here, machine: Machine, replace: bool) -> Review:
    identity = (entry.key, entry.provenance)
    ours = here.entries.get(identity)
    if entry.key.is_kernel:
        refusal, note = _checked_kernel(entry)
    else:
        try:
            found = installed_workload(entry.key.workload)
        except UnknownWorkload as error:
            return Review(entry, State.UNKNOWN, _missing(entry, error))
        refusal, note = _checked(entry, found, machine)
    if refusal:
        return Review(entry, State.INVALID, refusal)
    if ours is not None and _without_origin(ours) == _without_origin(entry):
        return Review(entry, State.SAME)
    in_the_way = ""
    if identity in here.running:
        in_the_way = f"study {here.running[identity]} of the same problem is running here"
    elif ours is not None:
        in_the_way = _compared(ours, entry)
    if not in_the_way:
        return Review(entry, State.NEW, note)
    return Review(entry, State.REPLACES if replace else State.CONFLICT, "; ".join(filter(None, [in_the_way, note])))


def _checked(entry: Entry, found: Workload, machine: Machine) -> tuple[str, str]:
    """The reason for refusing the entry, and a note on an accepted one. Raises UnknownWorkload."""
    try:
        problem = found.problem_type.from_dict(json.loads(entry.key.problem))
    except InvalidProblem as error:
        return f"problem: {error}", ""
    if problem.to_json() != entry.key.problem:
        return f"problem: fields are missing; in full it is {problem.to_json()}", ""
    if problem.world_size != entry.key.world_size:
        return f"world_size={entry.key.world_size}, but the problem's is {problem.world_size}", ""
    is_here = (entry.key.device, entry.key.arch) == (machine.device, machine.arch)
    stands_in = machine if is_here else KNOWN.get(entry.key.arch)
    space = found.space if stands_in is not None else Space(*found.space.dimensions.values())
    violation = space.violation(entry.winner.config, Task(problem, stands_in or machine))
    if violation is not None:
        return f"config: {violation}", ""
    if stands_in is None:
        return "", f"only names and values checked: {entry.key.arch} is unknown here; a look-up there checks the rest"
    unlike = found.unlike_measured(entry.winner.config, Regime(entry.key.regime))
    if unlike is not None:
        return "", f"no look-up serves it in the regime {entry.key.regime}: {unlike}"
    changes = entry.provenance.changes(provenance_of(found))
    return "", f"stale here, serves where versions are the file's: {changes}" if changes else ""


def _checked_kernel(entry: Entry) -> tuple[str, str]:
    """The reason for refusing a decorated kernel's entry, and a note on an accepted one. The kernel is in some program:
    a launch there checks its source and its configs.
    """
    if entry.key.regime != Regime.GRAPH:
        return f"regime {entry.key.regime}: a decorated kernel's results are of the regime graph", ""
    stale = entry.provenance.changes(dataclasses.replace(entry.provenance, **versions()))
    file = f" of {entry.origin}" if entry.origin else ""
    needs = f"a decorated kernel{file}: served where its source and its configs are those of the file"
    return "", f"{needs}; stale here, serves where versions are the file's: {stale}" if stale else needs


def _missing(entry: Entry, error: UnknownWorkload) -> str:
    """A stored name loads no file: the user puts it there and names it."""
    file = entry.origin.rpartition(":")[0]
    if not file.endswith(".py"):
        return f"{error}; of a workload in a file, AUTOTUNE_WORKLOADS must name the file"
    return (
        f"a workload of {entry.origin} (source_hash {entry.provenance.source_hash}), which an import does not load: "
        f"put {file} on this machine, set AUTOTUNE_WORKLOADS to its path, and import again"
    )


def _compared(ours: Entry, theirs: Entry) -> str:
    regime = Regime(ours.key.regime)
    here, there = (each.of(regime) for each in alike(ours.winner.latency, theirs.winner.latency))
    if ours.winner.config == theirs.winner.config:
        return f"same config; {microseconds(here)} here, {microseconds(there)} in the file"
    verdict = "another config, faster here" if here < there else "another config, not faster here"
    return f"{verdict}: {microseconds(here)} here, {microseconds(there)} in the file"


def _without_origin(entry: Entry) -> Entry:
    """The entry without what depends on the way it came."""
    return dataclasses.replace(entry, study_id=0, imported_at=None, origin="")
