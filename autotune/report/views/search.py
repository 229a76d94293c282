"""The search: every trial and the best so far over seconds, with the phases; failures by kind on a rim below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from autotune.config import Config
from autotune.db import TrialRecord
from autotune.outcome import Outcome
from autotune.report import draw
from autotune.report.draw import FAILED, GREY, WINNER, cut
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import latency_text, outcomes_text, plain
from autotune.results.library import baseline_name, mode_name
from autotune.results.study import Study, mode_of
from autotune.tuning.finals import BASELINE, FINAL, PROOF

PAUSE = 60.0
"""Seconds without a trial, beyond the trial's own, that count as an interruption and are left out of the clock."""

SIDES = {"left": 90, "right": 20, "outerBoundsMode": "none"}
"""The sides of both charts: their clocks agree, and the names of failures fit on the left."""

ENDED = "How evaluations ended"

LONGEST_REASON = 240
"""Characters of a failure's reason in a tooltip."""

PHASES = {BASELINE: "baselines", FINAL: "finals", PROOF: "proof"}
"""Phases by the source of a trial; every other source is the search."""


@dataclass(frozen=True)
class Moment:
    """A trial on the clock of the work: seconds at its begin and end, and of an interruption before it."""

    trial: TrialRecord
    at: float
    began: float
    paused: float


def view(study: Study) -> View | None:
    """None where no trial is here: an imported study's are where it was tuned."""
    if not study.trials:
        return None
    moments = timeline(study)
    counted = outcomes_text({ending.outcome: ending.count for ending in study.endings})
    text = f"{study.evaluated:,} of {study.record.space_size:,} valid configs were tried in {moments[-1].at:.0f} s: "
    text += f"{counted}. Each dot is a trial{'; the line is the best so far' if study.measured else ''}."
    kinds = len(failures(study))
    chart = Chart(
        "search", f"Trials over time: {counted}.", options(study), height=(380 if study.measured else 110) + 22 * kinds
    )
    hint = "Point at a dot for its config; click a mode in the legend to hide it; drag the bar below to zoom."
    return View("search", "The search over time", text, [chart], tables(study, moments), hint=hint)


def timeline(study: Study) -> list[Moment]:
    """The trials on the clock of the work; where moments were not recorded, one second per trial."""
    found: list[Moment] = []
    last, clock = study.record.created_at, 0.0
    for trial in study.trials:
        took = trial.evaluation.seconds.get("total", sum(trial.evaluation.seconds.values()))
        if trial.created_at is None:
            gap = 1.0
        else:
            gap = max(0.0, (trial.created_at - last).total_seconds())
            last = trial.created_at
        paused = gap - took if gap > took + PAUSE else 0.0
        began = clock + max(0.0, gap - paused - took)
        clock += gap - paused
        found.append(Moment(trial, clock, began, paused))
    return found


def phases(moments: Sequence[Moment]) -> list[tuple[str, float, float]]:
    """The phases with their begin and end in seconds: start of the ranks, baselines, search, finals."""
    found = []
    if moments and moments[0].began > 1:
        found.append(("start", 0.0, moments[0].began))
    begin = found[-1][2] if found else 0.0
    for name, group in groupby(moments, key=lambda moment: PHASES.get(moment.trial.source, "search")):
        end = list(group)[-1].at
        found.append((name, begin, end))
        begin = end
    return found


def best_so_far(study: Study, moments: Sequence[Moment]) -> list[tuple[float, float]]:
    """The points at which the search's best fell, and its end."""
    found: list[tuple[float, float]] = []
    for moment in moments:
        latency = moment.trial.evaluation.latency
        if latency is not None and moment.trial.source != FINAL:
            value = latency.of(study.regime)
            if not found or value < found[-1][1]:
                found.append((moment.at, value))
    return [*found, (moments[-1].at, found[-1][1])] if found else []


def failures(study: Study) -> list[Outcome]:
    """The kinds of failure that occurred, in the order of an evaluation's steps."""
    kinds = {trial.evaluation.outcome for trial in study.trials}
    return [outcome for outcome in Outcome if outcome in kinds and outcome is not Outcome.MEASURED]


def options(study: Study) -> Option:
    """Latencies above, failures below, on one clock."""
    moments = timeline(study)
    kinds, latencies = failures(study), [latency.of(study.regime) for latency in study.measured.values()]
    lines = _levels(study)
    ends = draw.bounds(latencies, [value for _, value in lines]) if latencies else {"min": 0, "max": 1}
    series = [_best(study, moments, lines)] if latencies else []
    series += _dots(study, moments, ends["max"])
    series += [_rim(study, moments, kind, place) for place, kind in enumerate(kinds)]
    rim = 22 * len(kinds)
    return draw.base(
        legend=draw.legend(data=["best so far", *(_named(study, mode) for mode in _measured_modes(study))]),
        grid=[
            {**SIDES, "top": 48, "bottom": 76 + rim + (12 if kinds else 0), "show": bool(latencies)},
            {**SIDES, "height": rim, "bottom": 76, "show": bool(kinds)},
        ],
        xAxis=[_clock(moments, 0, shown=not kinds), _clock(moments, 1, shown=bool(kinds))],
        yAxis=[
            draw.time_axis(**ends, gridIndex=0, show=bool(latencies)),
            {"type": "category", "data": [kind.value for kind in kinds], "gridIndex": 1, "show": bool(kinds),
             "axisLine": {"show": False}, "axisTick": {"show": False}, "axisLabel": {"fontSize": 10}},
        ],
        dataZoom=[{"type": "slider", "xAxisIndex": [0, 1], "height": 16, "bottom": 6, "showDataShadow": False,
                   "labelFormatter": "", "brushSelect": False}],
        series=[*_bands(moments, has_grid=bool(latencies)), *series],
    )  # fmt: skip


def tables(study: Study, moments: Sequence[Moment]) -> list[Table]:
    """The outcomes; what all trials of a mode share; every trial with the rest."""
    groups: dict[str, list[Config]] = {}
    for moment in moments:
        groups.setdefault(mode_of(moment.trial.config), []).append(moment.trial.config)
    varied = {mode: study.varied(configs) for mode, configs in groups.items()}
    trials = []
    for number, moment in enumerate(moments, start=1):
        trial, latency = moment.trial, moment.trial.evaluation.latency
        ended = latency_text(latency, study.regime) if latency is not None else trial.evaluation.outcome.value
        mode = mode_of(trial.config)
        trials.append([str(number), f"{moment.at:.1f}", trial.source, ended, mode, _words(trial.config, varied[mode])])
    common = [
        [mode, _words(configs[0], [n for n in study.names(configs) if n not in ("mode", *varied[mode])])]
        for mode, configs in groups.items()
    ]
    return [
        Table(*_endings(study), ENDED),
        Table(["mode", ""], [row for row in common if row[1]], "ll", "The same in every trial of a mode"),
        Table(["", "s", "proposed by", "ended", "mode", ""], trials, "rrlrll", "Every trial, by what differs"),
    ]


def endings(study: Study) -> View | None:
    """For a text, which has no room for whole reasons; None for an imported study, whose trials are elsewhere."""
    if not study.endings:
        return None
    return View("endings", ENDED, tables=[Table(*_endings(study, lambda reason: cut(" ".join(reason.split()), 90)))])


def _endings(study: Study, short: Callable[[str], str] = str) -> tuple[list[str], list[list[str]], str]:
    rows = [[ending.title, str(ending.count), short(ending.reason)] for ending in study.endings]
    return ["ended", "configs", "for example"], rows, "lrl"


def _words(config: Config, names: Sequence[str]) -> str:
    return " ".join(f"{plain(name)}={plain(config[name])}" for name in names if name in config)


def _levels(study: Study) -> list[tuple[str, float]]:
    """The fastest baseline, and perfect overlap: the slowest part alone."""
    report = study.result
    if report is None:
        return []
    found = []
    if report.speedup is not None:
        name = baseline_name(study.key, report.speedup.baseline)
        found.append((name, report.speedup.latency.of(report.regime)))
    if report.limit is not None:
        found.append(("perfect overlap", report.limit.parts[report.limit.slowest].median))
    return found


def _named(study: Study, mode: str) -> str:
    return mode_name(study.key, mode) or "trials"


def _measured_modes(study: Study) -> list[str]:
    found = {mode_of(trial.config) for trial in study.trials if trial.evaluation.latency is not None}
    return [mode for mode in study.modes if mode in found]


def _clock(moments: Sequence[Moment], grid: int, *, shown: bool) -> Option:
    return {
        "type": "value", "gridIndex": grid, "min": 0, "max": round(moments[-1].at, 2) or 1,
        "axisLine": {"show": shown},
        "axisLabel": {"show": shown, "hideOverlap": True, "formatter": "{value} s", "showMaxLabel": False},
        "axisTick": {"show": shown}, "splitLine": {"show": False},
    }  # fmt: skip


def _best(study: Study, moments: Sequence[Moment], lines: Sequence[tuple[str, float]]) -> Option:
    return {
        "type": "line", "name": "best so far", "step": "end", "silent": True, "symbol": "none", "z": 4, "color": WINNER,
        "lineStyle": {"width": 2}, "tooltip": {"show": False},
        "data": [[round(at, 2), round(value, 3)] for at, value in best_so_far(study, moments)],
        "markLine": draw.mark_lines([draw.line_at(value, name) for name, value in lines]),
    }  # fmt: skip


def _dots(study: Study, moments: Sequence[Moment], high: float) -> list[Option]:
    """A series for each mode; what is off the chart is a triangle at its upper edge."""
    colours = draw.mode_colours(study.modes)
    found = []
    for mode in _measured_modes(study):
        data = []
        for number, moment in enumerate(moments, start=1):
            latency = moment.trial.evaluation.latency
            if latency is None or mode_of(moment.trial.config) != mode:
                continue
            value = latency.of(study.regime)
            final = moment.trial.source == FINAL
            off: Option = {"symbol": "triangle", "symbolSize": 7} if value > high else {}
            if moment.trial.config == study.winner and not final:
                off = {"itemStyle": {"color": WINNER, "opacity": 1}, "symbolSize": 11}
            data.append(
                {
                    "value": [round(moment.at, 2), round(min(value, high), 3)],
                    "name": _told(study, moment, number, latency_text(latency, study.regime)),
                    **({"itemStyle": {"opacity": 0.35}, "symbolSize": 5} if final else {}),
                    **off,
                }
            )
        found.append({"type": "scatter", "name": _named(study, mode), "data": data, "symbolSize": 7,
                      "color": colours[mode], "itemStyle": {"opacity": 0.85}})  # fmt: skip
    return found


def _rim(study: Study, moments: Sequence[Moment], kind: Outcome, place: int) -> Option:
    data = [
        {
            "value": [round(moment.at, 2), place],
            "name": _told(study, moment, number, f"{kind.value}\n{_short(moment.trial.evaluation.reason)}"),
        }
        for number, moment in enumerate(moments, start=1)
        if moment.trial.evaluation.outcome is kind
    ]
    return {
        "type": "scatter", "name": kind.value, "xAxisIndex": 1, "yAxisIndex": 1, "data": data, "symbolSize": 7,
        "symbol": draw.SYMBOLS[kind], "color": GREY if kind is Outcome.INVALID else FAILED,
    }  # fmt: skip


def _told(study: Study, moment: Moment, number: int, ended: str) -> str:
    lines = draw.config_lines(study, moment.trial.config)
    return f"trial {number}, {moment.at:.0f} s, {plain(moment.trial.source)}\n{ended}\n{lines}"


def _short(reason: str) -> str:
    return cut(plain(" ".join(reason.split())), LONGEST_REASON)


def _bands(moments: Sequence[Moment], *, has_grid: bool) -> list[Option]:
    """The phases as bands with their names, interruptions as lines."""
    if not has_grid:
        return []
    areas = []
    for place, (name, begin, end) in enumerate(phases(moments)):
        label = {"show": end - begin > 0.06 * moments[-1].at, "position": "insideTop", "color": GREY, "fontSize": 11}
        style = {"color": GREY, "opacity": 0.06 if place % 2 else 0.14}
        areas.append([{"xAxis": begin, "name": name, "label": label, "itemStyle": style}, {"xAxis": end}])
    pauses = [
        {"xAxis": moment.began, "name": f"interrupted for {_duration(moment.paused)}",
         "label": {"formatter": "interrupted", "position": "insideEndBottom", "color": GREY, "fontSize": 11},
         "lineStyle": {"color": GREY, "type": "dotted"}}
        for moment in moments
        if moment.paused
    ]  # fmt: skip
    return [{"type": "line", "name": "phases", "data": [], "silent": True, "markArea": {"silent": True, "data": areas},
             "markLine": draw.mark_lines(pauses)}]  # fmt: skip


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
