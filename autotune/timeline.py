"""One traced call on all ranks: its events, and their file for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

from autotune import schema
from autotune.errors import InputError
from autotune.schema import Within

KINDS = ("sends", "tile", "waits", "barrier", "collective", "GEMM", "copy", "call")
"""Names of ``kernels/primitives/trace.py``'s kinds, by number; then those of ``ranks/marks.py``."""
SENDS, TILE, WAITS, BARRIER, COLLECTIVE, GEMM, COPY, CALL = range(len(KINDS))

KEPT_PROGRAMS = 16
"""Programs of each launch and rank that are stored at most, and the last; the file for Perfetto has all."""
KEPT_ROWS, KEPT_EVENTS = 80, 400
"""Programs of all ranks and launches, and their events, beyond which fewer of each launch and rank are stored."""


class Event(NamedTuple):
    """One event of a program, or of a stream, in microseconds since all ranks passed a barrier."""

    launch: int
    program: int
    kind: Annotated[int, Within(0, len(KINDS) - 1)]
    number: int
    """Number of the unit, the tile."""
    begin: float
    end: float


@dataclass(frozen=True)
class Traced:
    slowdown: Annotated[float, Within(0)]
    """The time of a traced call over that of one that is not."""
    ranks: tuple[tuple[Event, ...], ...]

    @classmethod
    def of(cls, slowdown: float, ranks: Sequence[Iterable[tuple[int, int, int, int, float, float]]]) -> Traced:
        return cls(slowdown, tuple(tuple(Event(*stamped) for stamped in rank) for rank in ranks))

    @property
    def end(self) -> float:
        """Microseconds at which the last program is done; 0 without events."""
        return max((event.end for rank in self.ranks for event in rank), default=0.0)

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        """Rank, launch and program of all that have events, in order."""
        return sorted({(rank, each.launch, each.program) for rank, events in enumerate(self.ranks) for each in events})

    def sampled(self) -> Traced:
        """With the events of some programs only, spread evenly, in times of nanoseconds."""
        most = KEPT_PROGRAMS
        while True:
            some = Traced(round(self.slowdown, 4), tuple(_some(rank, most) for rank in self.ranks))
            if most == 1 or (len(some.rows) <= KEPT_ROWS and sum(map(len, some.ranks)) <= KEPT_EVENTS):
                return some
            most //= 2


Timeline = dict[str, Traced]
"""Calls by the name of a baseline, or of a mode."""


def _some(events: Sequence[Event], most: int) -> tuple[Event, ...]:
    programs = {launch: kept(events, launch, most) for launch in {event.launch for event in events}}
    some = (event for event in events if event.program in programs[event.launch])
    return tuple(event._replace(begin=round(event.begin, 3), end=round(event.end, 3)) for event in some)


def kept(events: Iterable[Event], launch: int, most: int = KEPT_PROGRAMS) -> frozenset[int]:
    """At most ``most`` programs of a launch that have events, spread evenly, and the one that is done last."""
    done = sorted((event.program, event.end) for event in events if event.launch == launch)
    programs = list(dict.fromkeys(program for program, _ in done))
    step = -(-len(programs) // most) or 1
    return frozenset([*programs[::step], max(done, key=itemgetter(1))[0]] if done else ())


def as_json(timeline: Timeline) -> str:
    return json.dumps(schema.write(timeline))


def from_json(text: str) -> Timeline:
    """Raises InputError for what ``as_json`` did not write."""
    try:
        return schema.read(Timeline, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the stored timeline is damaged ({error}); tune again with --force") from error


def perfetto(traces: Mapping[str, Traced], titles: Mapping[str, str]) -> dict[str, Any]:
    """Chrome's trace format, which Perfetto opens: a process for each rank of each rung, a thread for each program."""
    events: list[dict[str, Any]] = []
    for place, (letter, traced) in enumerate(traces.items()):
        for rank, happened in enumerate(traced.ranks):
            process = 1000 * place + rank
            name = f"{letter} {titles[letter]}, rank {rank}"
            events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}})
            events += [_chrome(event, process) for event in happened]
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _chrome(event: Event, process: int) -> dict[str, Any]:
    return {
        "name": f"{KINDS[event.kind]} {event.number}", "cat": KINDS[event.kind], "pid": process,
        "tid": 100_000 * event.launch + event.program, "ts": round(event.begin, 3), "ph": "X",
        "dur": round(max(0.0, event.end - event.begin), 3),
    }  # fmt: skip
