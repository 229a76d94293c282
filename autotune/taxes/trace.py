"""One traced call on all ranks: its events, and their file for Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.ranks.protocol import Stamped

KINDS = ("sends", "tile", "waits", "barrier")
"""Names of ``kernels/primitives/trace.py``'s kinds, by number."""
SENDS, TILE, WAITS, BARRIER = range(4)

KEPT_PROGRAMS = 16
"""Programs of each launch and rank that are stored with a study; the file has all."""


@dataclass(frozen=True)
class Event:
    """One program's events, in microseconds since all ranks passed a barrier."""

    launch: int
    program: int
    kind: int
    number: int
    """Number of the unit, the tile."""
    begin: float
    end: float


@dataclass(frozen=True)
class Traced:
    slowdown: float
    """The twin's time over the rung's."""
    ranks: tuple[tuple[Event, ...], ...]

    @classmethod
    def of(cls, slowdown: float, ranks: Sequence[Iterable[Stamped]]) -> Traced:
        return cls(slowdown, tuple(tuple(Event(*stamped) for stamped in rank) for rank in ranks))

    def sampled(self) -> Traced:
        """With the events of some programs only, spread evenly."""
        ranks = tuple(
            tuple(event for event in rank if event.program in kept(rank, event.launch)) for rank in self.ranks
        )
        return Traced(self.slowdown, ranks)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an event is a list in the order of its fields."""
        ranks = [
            [[e.launch, e.program, e.kind, e.number, round(e.begin, 3), round(e.end, 3)] for e in rank]
            for rank in self.ranks
        ]  # fmt: skip
        return {"slowdown": self.slowdown, "ranks": ranks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Traced:
        """Raises KeyError, TypeError or ValueError for what ``as_dict`` did not write."""
        ranks = tuple(tuple(_event(*each) for each in rank) for rank in values["ranks"])
        return cls(float(values["slowdown"]), ranks)


def _event(launch: Any, program: Any, kind: Any, number: Any, begin: Any, end: Any) -> Event:
    if not 0 <= int(kind) < len(KINDS):
        raise ValueError(f"{kind} is not a kind of event")
    return Event(int(launch), int(program), int(kind), int(number), float(begin), float(end))


def kept(events: Iterable[Event], launch: int) -> frozenset[int]:
    """At most KEPT_PROGRAMS programs of a launch that have events, spread evenly, the first among them."""
    programs = sorted({event.program for event in events if event.launch == launch})
    step = -(-len(programs) // KEPT_PROGRAMS) if programs else 1
    return frozenset(programs[::step])


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
