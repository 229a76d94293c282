"""Reads a fleet's rows as records. A damaged row raises one of ``autotune.db.engines.failures.DAMAGE``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from autotune.db.fleet_records import (
    Attempt,
    AttemptState,
    Finding,
    HostRecord,
    Kind,
    Listed,
    ProblemState,
    UnderWay,
    Wanted,
)
from autotune.db.lease import Held
from autotune.db.models import KIND, FleetAttempt, FleetFinding, FleetHost, FleetProblem
from autotune.db.rows import json_object, key_of, provenance_of, whole_number, words

MOST_RANKS = 1 << 20
"""More GPUs, or ranks, than a host has."""


def listed(row: FleetProblem, failed_on: Iterable[str] = ()) -> Listed:
    wanted = Wanted(key_of(row), provenance_of(row), json_object(row.options))
    _ranks(row.world_size)
    state: ProblemState = _one_of(row.state, get_args(ProblemState))
    return Listed(row.id, wanted, state, words(row.reason), frozenset(failed_on))


def under_way(row: FleetAttempt, of: Listed) -> UnderWay:
    held = Held(words(row.lease), whole_number(row.heartbeat))
    return UnderWay(row.id, of, words(row.host), held, words(row.started_at), words(row.progress))


def attempt(row: FleetAttempt, of: Listed) -> Attempt:
    state: Any = _one_of(row.state, ("running", *get_args(AttemptState)))
    seconds = None if row.seconds is None else duration(row.seconds)
    return Attempt(row.id, of, words(row.host), state, words(row.reason), seconds)


def finding(row: FleetFinding) -> Finding:
    return Finding(words(row.name), words(row.verdict), words(row.found), words(row.mend))


def host(row: FleetHost, findings: Iterable[Finding]) -> HostRecord:
    kind = Kind(**{name: words(getattr(row, name)) for name in KIND})
    return HostRecord(
        words(row.name), _ranks(row.gpus), kind, tuple(findings), words(row.broken), words(row.set_aside)
    )  # fmt: skip


def duration(value: object) -> float:
    """Seconds; raises ValueError for what no clock tells."""
    if not isinstance(value, int | float) or not (math.isfinite(value) and 0 <= value < 1e9):
        raise ValueError(f"{value!r} where seconds are needed")
    return float(value)


def _ranks(value: object) -> int:
    number = whole_number(value)
    if not 0 <= number <= MOST_RANKS:
        raise ValueError(f"{number} GPUs or ranks")
    return number


def _one_of(value: object, allowed: Sequence[str]) -> Any:
    if value not in allowed:
        raise ValueError(f"state {value!r}: allowed: {', '.join(allowed)}")
    return value
