"""The timeline: one traced call of each, a lane for each rank, a row in it for each of some programs."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report import draw, waterfall
from autotune.report.draw import COLOURS
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import microseconds, plain
from autotune.results.library import baseline_name
from autotune.results.study import Study, mode_of
from autotune.taxes import ladder
from autotune.text import counted
from autotune.timeline import BARRIER, CALL, COLLECTIVE, COPY, GEMM, KINDS, SENDS, TILE, WAITS, Event, Traced

EXPLAINED = (
    "One traced call of each: a lane for each rank, in it a row for each stream of a library, or for each of some of a "
    "kernel's programs. Where tiles are computed while data is on its way, nobody waits for all of it. Clocks are "
    "aligned at a barrier of all ranks just before the call. tune taxes --trace FILE writes all programs for Perfetto."
)

PALE = "#8a94a655"

ROLES = {
    "other kernels, idle": ((CALL,), PALE), "computes": ((TILE, GEMM), COLOURS[0]),
    "sends": ((SENDS, COLLECTIVE, COPY), COLOURS[1]), "waits": ((WAITS, BARRIER), COLOURS[2]),
}  # fmt: skip
"""Kinds and colour of each role in drawing order: a call, or a tile, then its parts."""

LEGEND, HEAD, GAP, FOOT = 30, 40, 12, 16
"""Pixels above all; above a call's lanes, for its name and its end; below each; below all, for the axis."""


def view(study: Study) -> View | None:
    """None where no call was traced."""
    calls = {_name(study, name): traced for name, traced in study.timeline.items()}
    taxes = study.ladder
    calls |= {f"{letter}, {ladder.RUNGS[letter]}": each for letter, each in (taxes.traces if taxes else {}).items()}
    calls = {name: traced for name, traced in calls.items() if traced.end > 0}
    if not calls:
        return None
    told = ", ".join(f"{name} done after {microseconds(traced.end)}" for name, traced in calls.items())
    ranks = counted(max(len(traced.ranks) for traced in calls.values()), "rank")
    height = LEGEND + FOOT + sum(HEAD + GAP + _height(traced) for traced in calls.values())
    chart = Chart("timeline", f"Timeline of {ranks}: {told}.", options(calls), height)
    return View("timeline", "Why: one call, program by program", EXPLAINED, [chart], [table(calls)])


def _name(study: Study, name: str) -> str:
    if study.result is not None and name in study.result.winner.baselines:
        return f"{baseline_name(study.key, name)}, eager"
    is_winner = study.winner is not None and mode_of(study.winner) == name
    return f"winner: {plain(name)}" if is_winner else plain(name)


def _height(traced: Traced) -> int:
    """Pixels of a call's lanes."""
    count = len(traced.rows)
    return max(22 * len(traced.ranks), min(12 * count, 160), 4 * count)


def options(calls: dict[str, Traced]) -> Option:
    """A grid for each call, one above the other, on one axis up to the last end."""
    size, unit = waterfall.unit(last := max(traced.end for traced in calls.values()))
    step = draw.nice(last / size / 8)
    titles, grids, x_axes, y_axes, series = [], [], [], [], list[Option]()
    top = LEGEND
    for place, (name, traced) in enumerate(calls.items()):
        is_last, height = place == len(calls) - 1, _height(traced)
        ranks = [rank for rank, *_ in traced.rows]
        titles.append({**draw.heading(f"{name} ({slower(traced)})", 560), "top": top})
        grids.append({"left": 54, "right": 56, "top": top + HEAD, "height": height})
        x_axes.append({
            "type": "value", "gridIndex": place, "min": 0, "max": float(f"{step * -(-last // (step * size)):.10g}"),
            "interval": step, "axisLabel": {"show": is_last, "formatter": f"{{value}} {unit}", "hideOverlap": True},
        })  # fmt: skip
        names = ["" if rank in ranks[:number] else f"rank {rank}" for number, rank in enumerate(ranks)]
        y_axes.append({
            "type": "category", "gridIndex": place, "data": names, "inverse": True, "axisTick": {"show": False},
            "axisLabel": {"interval": 0},
        })  # fmt: skip
        series += _series(traced, place, size, unit)
        top += HEAD + height + GAP
    return draw.base(
        title=titles, legend=draw.legend(data=list(dict.fromkeys(each["name"] for each in series if "name" in each))),
        grid=grids, xAxis=x_axes, yAxis=y_axes, series=series,
    )  # fmt: skip


def slower(traced: Traced) -> str:
    percent = round(100 * (traced.slowdown - 1))
    return f"traced, {percent} % slower for it" if percent > 0 else "traced, no slower for it"


def _series(traced: Traced, place: int, size: float, unit: str) -> list[Option]:
    """Spans of each role in a call's grid, and a line at its end."""
    row_of, found = {line: number for number, line in enumerate(traced.rows)}, list[Option]()
    for role, (kinds, colour) in ROLES.items():
        spans = [
            _span(row_of[rank, event.launch, event.program], rank, event, size, unit)
            for rank, events in enumerate(traced.ranks)
            for event in events
            if event.kind in kinds
        ]
        if spans:
            found.append({
                "type": "custom", "renderItem": "span", "name": role, "data": spans, "color": colour,
                "xAxisIndex": place, "yAxisIndex": place, "encode": {"x": [1, 2], "y": 0}, "clip": True,
            })  # fmt: skip
    end, said = draw.line_at(traced.end, "", vertical=True), f"done after {microseconds(traced.end)}"
    line = {**end, "xAxis": round(traced.end / size, 4), "name": said, "label": {**end["label"], "formatter": said}}
    found[0]["markLine"] = draw.mark_lines([line])
    return found


def table(calls: dict[str, Traced]) -> Table:
    """Each rank's call in figures, of the programs that are stored."""
    size, unit = waterfall.unit(max(traced.end for traced in calls.values()))

    def last(events: Sequence[Event], kinds: Sequence[int]) -> str:
        ends = [event.end for event in events if event.kind in kinds]
        return f"{max(ends) / size:.2f}" if ends else ""

    body = []
    for name, traced in calls.items():
        for rank, events in enumerate(traced.ranks):
            count = len({(event.launch, event.program) for event in events})
            ends = [last(events, kinds) for kinds in (ROLES["sends"][0], ROLES["computes"][0], range(len(KINDS)))]
            body.append([f"{name} ({slower(traced)})", str(rank), str(count), *ends])
    return Table(["call", "rank", "rows", f"last sent, {unit}", "last computed", "end"], body, "lrrrrr")


def _span(row: int, rank: int, event: Event, size: float, unit: str) -> Option:
    begin, end = event.begin / size, event.end / size
    name = f"rank {rank}, program {event.program}\n{KINDS[event.kind]} {event.number}: {begin:.2f} to {end:.2f} {unit}"
    return {"value": [row, round(begin, 4), round(end, 4)], "name": name}
