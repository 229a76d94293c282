"""A list's progress, from the studies and their leases alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from autotune.db import CacheKey, Lease, Store
from autotune.db.lease import Held
from autotune.db.records import KEY, PROVENANCE, Standing
from autotune.fleet.problem_list import Asked
from autotune.machine import INTERPRETED
from autotune.results.figures import dashed, problem_text, regime_options
from autotune.task import Task
from autotune.text import counted
from autotune.workloads import provenance_of

State = Literal["done", "running", "stopped", "failed", "waiting"]

STOP = "stop"
"""Token of the lease by which ``stop`` takes a study from its worker."""

NAMES = (*KEY, *PROVENANCE)
OF_HOSTS = ("device", "arch", "interconnect", "driver")
"""Columns in which studies of one problem may differ."""


@dataclass(frozen=True)
class Row:
    """A problem of the list, on one kind of host that has begun it, or on none."""

    asked: Asked
    device: str
    """Empty if no host has begun it, and any may."""
    state: State
    told: str = ""
    """The process that tunes it, or the host and reason of its failure."""
    standing: Standing | None = None

    def as_dict(self) -> dict[str, Any]:
        problem = {"workload": self.asked.workload.name, "problem": self.asked.problem.as_dict()}
        rest = {"regime": self.asked.regime.value, "device": self.device, "state": self.state, "told": self.told}
        return problem | rest


def title(asked: Asked) -> str:
    """``all-gather-gemm m=16 n=64 k=64 dtype=bf16 ×2``."""
    fields = {name: value for name, value in asked.problem.as_dict().items() if value is not False}
    text = f"{dashed(asked.workload.name)} {problem_text(fields)}{regime_options(asked.regime)}"
    return f"{text} ×{asked.problem.world_size}{'' if asked.search else ', verified'}"


def headline(rows: Sequence[Row]) -> str:
    """``60 problems: 41 done, 3 running, 16 waiting``."""
    counts = Counter(row.state for row in rows)
    told = ", ".join(f"{counts[state]} {state}" for state in get_args(State) if counts[state])
    return f"{counted(len(rows), 'problem')}: {told}"


def rows_of(asked: Sequence[Asked], store: Store) -> list[Row]:
    """The list, a row for each device that has begun a problem with the versions that are installed here."""
    known: dict[tuple[Any, ...], list[tuple[str, Standing]]] = {}
    for columns, standing in store.standings().items():
        values = dict(zip(NAMES, columns, strict=True))
        known.setdefault(_problem(values), []).append((values["device"], standing))
    rows: list[Row] = []
    for each in asked:
        key, provenance = CacheKey.of(Task(each.problem, INTERPRETED), each.regime), provenance_of(each.workload)
        found = known.get(_problem(dataclasses.asdict(key) | dataclasses.asdict(provenance)), [])
        mine = [_row(each, *one) for one in found if each.device in (None, one[0])]
        rows += mine or [Row(each, each.device or "", "waiting")]
    return rows


def stop(rows: Sequence[Row], store: Store) -> int:
    """Take the running studies from their workers, which end at their next measurement; their number."""
    lease = Lease.new(STOP)
    running = [row.standing for row in rows if row.state == "running" and row.standing is not None]
    for standing in running:
        held = standing.held
        while (held := store.take_lease(standing.study_id, lease, held)) is not None:
            pass  # its heart has beaten in the meantime
    return len(running)


def is_done(asked: Asked, standing: Standing | None) -> bool:
    """True if a study answers for it: one without a search only where none is asked for."""
    return standing is not None and standing.is_finished and not (asked.search and standing.is_verified)


def is_stop(held: Held | None) -> bool:
    lease = held.lease if held is not None else None
    return lease is not None and lease.token == STOP


def _row(asked: Asked, device: str, standing: Standing) -> Row:
    row = partial(Row, asked, device, standing=standing)
    if is_done(asked, standing):
        return row("done")
    if is_stop(standing.held):
        return row("stopped")
    if standing.held is not None and not standing.held.is_gone:
        return row("running", str(standing.held))
    return row("failed", standing.failure) if standing.failure else row("waiting")


def _problem(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in NAMES if name not in OF_HOSTS)
