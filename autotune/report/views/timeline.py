"""The timeline: one traced call, a lane for each rank, a row in it for each of some programs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.report import draw, waterfall
from autotune.report.draw import COLOURS, GREY
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import microseconds
from autotune.results.study import Study
from autotune.taxes import ladder
from autotune.timeline import KINDS, SENDS, TILE, WAITS, Event, Traced
from autotune.text import counted

EXPLAINED = (
    "One call, as stamps of time within the kernels tell it. Each rank has a lane, and each of some of its programs a "
    "row in it. Where tiles are computed while data is on its way, nobody waits for all of it. Clocks are aligned at a "
    "barrier of all ranks just before the call. tune taxes --trace FILE writes all programs for Perfetto."
)

COLOUR = {TILE: COLOURS[0], SENDS: COLOURS[1], WAITS: GREY}
"""Colours in drawing order: a tile first, then its parts."""

MOST_ROWS = 64
"""Rows of a chart; ranks share them."""


def view(study: Study) -> View | None:
    """None where no call was traced."""
    taxes = study.ladder
    if taxes is None or not taxes.traces:
        return None
    charts, tables, notes = [], [], []
    last = max(map(end_of, taxes.traces.values()))
    for letter, traced in taxes.traces.items():
        title = f"{letter}, {ladder.RUNGS[letter]}"
        count = len(rows(traced))
        label = f"Timeline of {title}: {counted(len(traced.ranks), 'rank')}, {counted(count, 'program')}."
        height = 110 + max(8 * count, 40 * len(traced.ranks))
        charts.append(Chart(f"timeline-{letter}", label, options(traced, title, last), height))
        tables.append(table(traced, title))
        notes.append(f"{title}: with its stamps a call takes {traced.slowdown:.2f} times as long as without.")
    return View("timeline", "Why: one call, program by program", EXPLAINED, charts, tables, notes)


def end_of(traced: Traced) -> float:
    """Microseconds at which the last program is done."""
    return max((event.end for rank in traced.ranks for event in rank), default=1.0)


def rows(traced: Traced) -> list[tuple[int, int, int]]:
    """Rank, launch and program of each row, from the top down: the same share of programs of each rank."""
    found = []
    for rank, events in enumerate(traced.ranks):
        own = sorted({(event.launch, event.program) for event in events})
        step = -(-len(own) * len(traced.ranks) // MOST_ROWS) if own else 1
        found += [(rank, *each) for each in own[:: max(1, step)]]
    return found


def options(traced: Traced, title: str, last: float) -> Option:
    """A series of spans for each kind of event, on an axis up to the end of the ``last`` of several traces."""
    lines = rows(traced)
    place = {line: number for number, line in enumerate(lines)}
    size, unit = waterfall.unit(last)
    series: list[Option] = []
    for kind, colour in COLOUR.items():
        spans = [
            _span(place[rank, event.launch, event.program], rank, event, size, unit)
            for rank, events in enumerate(traced.ranks)
            for event in events
            if event.kind == kind and (rank, event.launch, event.program) in place
        ]
        if spans:
            series.append({
                "type": "custom", "renderItem": "span", "name": KINDS[kind], "data": spans, "color": colour,
                "encode": {"x": [1, 2], "y": 0}, "clip": True,
            })  # fmt: skip
    first = {rank: min(number for line, number in place.items() if line[0] == rank) for rank, *_ in lines}
    names = [f"rank {line[0]}" if first[line[0]] == number else "" for line, number in place.items()]
    return draw.base(
        title=draw.heading(f"{title}: done after {microseconds(end_of(traced))}", draw.NARROW),
        legend=draw.legend(top=26),
        grid={"left": 8, "right": 24, "top": 60, "bottom": 24},
        xAxis={"type": "value", "min": 0, "max": math.ceil(last / size), "splitNumber": 6,
               "axisLabel": {"formatter": f"{{value}} {unit}", "hideOverlap": True}},
        yAxis={"type": "category", "data": names, "inverse": True, "axisTick": {"show": False},
               "axisLabel": {"interval": 0}},
        series=series,
    )  # fmt: skip


def table(traced: Traced, title: str) -> Table:
    """Each rank's call in figures, of the programs that are stored."""
    size, unit = waterfall.unit(end_of(traced))

    def shown(values: Sequence[float]) -> str:
        return f"{max(values) / size:.2f}" if values else ""

    body = []
    for rank, events in enumerate(traced.ranks):
        waited = sum(event.end - event.begin for event in events if event.kind == WAITS)
        programs = len({(event.launch, event.program) for event in events})
        body.append([
            str(rank), str(programs), shown([event.end for event in events if event.kind == SENDS]),
            shown([event.end for event in events if event.kind == TILE]),
            f"{waited / size / max(1, programs):.2f}", shown([event.end for event in events]),
        ])  # fmt: skip
    header = ["rank", "programs", f"last sent, {unit}", "last tile", "waited, a program", "end"]
    return Table(header, body, "rrrrrr", title)


def _span(row: int, rank: int, event: Event, size: float, unit: str) -> Option:
    begin, end = event.begin / size, event.end / size
    name = f"rank {rank}, program {event.program}\n{KINDS[event.kind]} {event.number}: {begin:.2f} to {end:.2f} {unit}"
    return {"value": [row, round(begin, 4), round(end, 4)], "name": name}
