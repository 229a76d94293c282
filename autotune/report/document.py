"""Writes a report as Markdown or JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from autotune.config import Config
from autotune.outcome import Regime
from autotune.report import waterfall
from autotune.results.figures import (
    BEYOND_LIMIT,
    NOT_TOLD_APART,
    asked_text,
    change_text,
    config_text,
    dashed,
    device_text,
    difference_text,
    efficiency_text,
    has_rounds,
    latency_text,
    microseconds,
    plain,
    problem_text,
    resource_text,
)
from autotune.results.model import Knob, Report
from autotune.results.regimes import TITLES, conclusion, door_text, title_of, tuned_for
from autotune.results.routings import EXPLAINED, HEADER, NOT_MEASURED, cells
from autotune.results.words import has_words, in_words
from autotune.taxes.result import Taxes, summary
from autotune.text import counted, json_text, markdown, markdown_code

LANGUAGES = {"Python": "python", "command": "sh", "JSON": "json"}

WIDTH = 104
"""Characters in a line of prose."""

MOST_CHANGES = 6
"""Changes from the winner that fit a row of a table of 140 columns; the web page and JSON have them all."""


def to_markdown(report: Report) -> str:
    """The report as Markdown, its verdict first."""
    sections = [
        _verdict(report),
        _baselines(report),
        _regimes(report),
        _routings(report),
        _limit(report),
        _taxes(report),
        _best(report),
        _endings(report),
        _knobs(report),
        _provenance(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def overview(reports: Sequence[Report]) -> str:
    """Many problems as one table; their own reports follow."""
    rows = []
    for each in reports:
        first = each.speedups[0] if each.speedups else None
        rows.append(
            [
                dashed(each.key.workload),
                asked_text(each.key, each.problem),
                f"{each.key.world_size} × {each.key.device}",
                plain(each.config.get("mode", "")),
                latency_text(each.latency, each.regime),
                f"{first.text} {first.baseline}" if first is not None and first.text else "",
                f"{each.limit.share.value:.2f}" if each.limit is not None else "",
            ]
        )
    header = ["workload", "problem", "device", "mode", "latency", "times as fast as", "of the limit"]
    return f"# {len(reports)} tuned problems\n\n{table(header, rows, 'llllrlr')}"


def to_dict(report: Report) -> dict[str, Any]:
    """The report as JSON-able values, under the names of its fields."""
    values: dict[str, Any] = _plain(report)
    return values


def to_json(report: Report) -> str:
    return json_text(to_dict(report))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> str:
    """A Markdown table whose columns line up as plain text too; ``align`` has ``r`` per right-aligned column.

    Cells are escaped as text.
    """
    cells = [[markdown(text) for text in row] for row in (header, *rows)]
    widths = [max(2, *(len(row[column]) for row in cells)) for column in range(len(header))]  # GFM takes no ":" alone
    right = [align[column : column + 1] == "r" for column in range(len(header))]
    rule = ["-" * (width - 1) + (":" if r else "-") for width, r in zip(widths, right, strict=True)]
    padded = [
        [text.rjust(width) if r else text.ljust(width) for text, width, r in zip(row, widths, right, strict=True)]
        for row in cells
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in (padded[0], rule, *padded[1:]))


def _verdict(report: Report) -> str:
    lines = [f"# {markdown(f'{dashed(report.key.workload)}: {problem_text(report.problem)}')}", ""]
    verdict = f"**{latency_text(report.latency, report.regime)}** on {markdown(device_text(report.key))}"
    if report.speedups:
        first = report.speedups[0]
        own = [each for each in report.speedups if each.latency.same_calls(report.latency)]
        verdict += "".join(
            f": {markdown(each.baseline)} itself, which no config beat by more than the noise" for each in own[:1]
        )
        if first not in own and first.ratio is not None:
            times = f"**{first.ratio} times** as fast as" if first.ratio.is_told else f"{NOT_TOLD_APART} from"
            verdict += f", {times} {markdown(first.baseline)}"
    if report.limit is not None:
        share = report.limit.share.value
        alone = f"{report.limit.slowest} alone takes {share:.2f} of that time on the device"
        alone += f": the winner is {BEYOND_LIMIT}" if share > 1.005 else ""
        verdict += f"; {markdown(alone)}"
    lines += [verdict + "."]
    slower = [each for each in report.verdicts if each.ratio.is_less]
    lines += ["", f"**{markdown(conclusion(slower))}**"] if slower else []
    lines += ["", f"Tuned {_date(report.finished_at)} for {tuned_for(report.key)}."]
    lines += [f"\n> {markdown(note)}" for note in report.notes]
    lines += ["", markdown(in_words(report.key.workload, report.config))] if has_words(report.key) else []
    for name, text in report.copies.items():
        lines += ["", f"```{LANGUAGES[name]}", text, "```"]
    return "\n".join(lines)


def _baselines(report: Report) -> str:
    """Empty for a decorated kernel: it has no baselines, and no finals."""
    if not report.speedups:
        return ""
    regime = report.regime
    rows = [["winner", latency_text(report.latency, regime), microseconds(report.latency.skew), ""]]
    rows += [
        [each.baseline, latency_text(each.latency, regime), microseconds(each.latency.skew), each.text]
        for each in report.speedups
    ]
    text = f"Latency of the slowest rank, {title_of(report.key, regime)}: the median over "
    if has_rounds(report.latency, regime):
        text += "the rounds of the finals,\n"
        text += "in which all took turns. ± is a 95 % interval over the rounds"
        if not report.key.is_interpreted:
            text += "; for a ratio it comes from the ratios\nwithin each round, so changes that hit both alike cancel"
        text += "."
    else:
        text += "iterations. ± is their spread,\nwhich does not cover changes between rounds."
    text += " Skew is slowest minus fastest rank.\n\n"
    header = ["", "latency", "skew", "times as fast"]
    if report.key.is_interpreted:
        header, rows = header[:-1], [row[:-1] for row in rows]
    return "## Against the baselines\n\n" + text + table(header, rows, "lrrr")


def _regimes(report: Report) -> str:
    """Empty if only one regime was measured, as under the interpreter."""
    regimes = [each for each in Regime if any(each in found for found in report.in_regimes.values())]
    if len(regimes) < 2:
        return ""
    rows = [
        [name, *(microseconds(found[each]) if each in found else "not measured" for each in regimes)]
        for name, found in report.in_regimes.items()
    ]
    text = "In a graph: the device's time of a captured call. Pipelined: eager calls, the host running ahead; the\n"
    text += "larger of the device's time and the host's time to enqueue a call. Isolated: one eager call on an idle\n"
    text += "GPU with cold caches, from the ranks' common start to the slowest rank's end.\n\n"
    lines = "\n".join(f"- {markdown(each.text)}" for each in report.verdicts)
    told = f"\n\n{lines}\n\n{markdown(conclusion(report.verdicts))}" if report.verdicts else ""
    told += f" {door}" if (door := door_text(report.latency)) else ""
    header = ["", *(TITLES[each] for each in regimes)]
    return "## In a graph, pipelined, isolated\n\n" + text + table(header, rows, "lrrr") + told


def _routings(report: Report) -> str:
    """Empty for other problems than a mixture's."""
    if not report.routings:
        return ""
    rows = [cells(row, report.regime) for row in report.routings]
    told = [textwrap.fill(EXPLAINED, WIDTH), table(HEADER, rows, "lrrr")] if len(rows) > 1 else [NOT_MEASURED]
    return "\n\n".join(["## Under other routings", *told])


def _limit(report: Report) -> str:
    tables = []
    if report.limit is not None:
        rows = [
            [name, latency_text(part, Regime.GRAPH), str(report.limit.shares[name])]
            for name, part in report.limit.parts.items()
        ]
        text = "The operation's parts alone, as the library does them, measured in turns with the finalists. Perfect\n"
        text += "overlap of these parts would take as long as the slowest one.\n\n"
        tables.append(text + table(["part", "on the device", "share of the winner's time"], rows, "lrr"))
        if report.limit.efficiency is not None:
            tables.append(f"Overlap efficiency: {efficiency_text(report.limit.efficiency)}.")
    if report.roofline is not None:
        device = report.latency.of(Regime.GRAPH)
        rows = [
            [resource_text(resource), _rate(resource, rate), microseconds(taken), f"{taken / device:.2f}"]
            for resource, rate in report.roofline.rates.items()
            if (taken := report.roofline.times.get(resource)) is not None
        ]
        text = (
            "The roofline: the problem's demand on each resource, at the rate measured on this device (a large square\n"
        )
        text += "GEMM of the same type, a large copy, copies from all peers at once).\n\n"
        header = ["resource", "rate", "busy for at least", "share of the winner's time"]
        tables.append(text + table(header, rows, "lrrr"))
    return "\n\n".join(["## The limits", *tables]) if tables else ""


def _rate(resource: str, per_microsecond: float) -> str:
    if resource == "flops":
        return f"{per_microsecond / 1e6:.0f} TFLOP/s"
    return f"{per_microsecond / 1e3:.0f} GB/s"


def _taxes(report: Report) -> str:
    """Taxes by the ladder if it was measured, else as far as the finals tell them."""
    if report.ladder is not None:
        drawn = "\n".join(waterfall.waterfall(report.ladder))
        rows = [[name, text.replace("\n", "; ")] for name, text in waterfall.table(report.ladder)]
        notes = "\n".join(f"- {markdown(note)}" for note in waterfall.notes(report.ladder))
        caveat = [waterfall.caveat(report.ladder)] if report.ladder.interpreted else []
        parts = [*caveat, f"```text\n{drawn}\n```", table(["", "measured by tune taxes"], rows, "ll"), notes]
        return "\n\n".join(["## What bulk synchrony costs", *parts])
    rows = [[each.name, difference_text(each.microseconds, each.error), each.meaning] for each in report.taxes]
    return "## What bulk synchrony costs\n\n" + table(["", "time", "how it was found"], rows, "lr") if rows else ""


def _best(report: Report) -> str:
    """Configs of the winner's mode by what they change in it, those of another mode by what they change in its first;
    that first one stands below the table, which would be too wide with it.
    """
    firsts = {report.config.get("mode"): (report.config, "the winner")}
    rows: list[list[str]] = []
    whole = []
    again = any(each.final for each in report.best)
    for place, each in enumerate(report.best, start=1):
        final = [microseconds(each.final.of(report.regime)) if each.final else ""] if again else []
        mode = each.config.get("mode")
        if mode not in firsts:
            firsts[mode] = each.config, f"number {place}"
            whole.append(f"Number {place}: {markdown(config_text(each.config))}")
            change = f"another mode: {plain(mode)}, see below"
        else:
            change = _folded(change_text(each.config, *firsts[mode]).removeprefix("the winner with "))
        rows.append([str(place), latency_text(each.latency, report.regime), *final, change])
    if not rows:
        return ""
    text = "Ordered by latency in the search, where ± is half the distance from the 20th to the 80th percentile of\n"
    text += "the iterations."
    if report.remeasured:
        text += " The finals, where the best were measured again, chose the winner."
    text += "\n\n"
    whole += [f"Failed when it was checked again: {markdown(config_text(each.config))}" for each in report.disqualified]
    header = ["", "search", *(["finals"] if again else []), "change from the winner"]
    return "\n\n".join([f"## The {len(rows)} best\n\n{text}{table(header, rows, 'r' * (len(header) - 1))}", *whole])


def _folded(change: str) -> str:
    """The first differences; a table has no room for more."""
    words = change.split(" ")
    left = len(words) - MOST_CHANGES
    return change if left <= 0 else f"{' '.join(words[:MOST_CHANGES])} and {left} more"


def _endings(report: Report) -> str:
    """Empty for an imported study, whose trials are elsewhere."""
    if not report.endings:
        return ""
    rows = [[each.title, str(each.count), _short(each.reason)] for each in report.endings]
    return "## How evaluations ended\n\n" + table(["outcome", "configs", "for example"], rows, "lr")


def _knobs(report: Report) -> str:
    """Best and worst value of each dimension; the web page and JSON have them all."""
    if not report.knobs:
        return ""
    text = "The best and the worst value of each dimension: the best latency of any config with it, over the best\n"
    text += "with any value; 1.00 costs nothing. In brackets, the number of such configs measured. Every value:\n"
    text += "--format html or json. Importance: Optuna's PED-ANOVA for the best tenth.\n\n"
    ranked = sorted(report.knobs, key=lambda knob: -(knob.importance or 0.0))
    rows = [[knob.name, "" if knob.importance is None else f"{knob.importance:.2f}", *_ends(knob)] for knob in ranked]
    notes = "".join(f"\n\n> {markdown(note)}" for note in report.knob_notes)
    out = table(["dimension", "importance", "best", "worst"], rows, "lr")
    return "## How each dimension mattered\n\n" + text + out + notes


def _ends(knob: Knob) -> list[str]:
    ranked = sorted(knob.reached, key=lambda each: each.relative)
    return [f"{plain(each.value)}: {each.relative:.2f} ({each.configs})" for each in (ranked[0], ranked[-1])]


def _provenance(report: Report) -> str:
    versions = dataclasses.asdict(report.provenance)
    correlation = report.rank_correlation
    model = "too few predictions" if correlation is None else f"{correlation:.2f} (Spearman; 1 is a perfect order)"
    spent = f"{report.seconds:.0f} s, of which measuring {report.measuring:.0f} s"
    restarts = f"{counted(report.restarts, 'time')}, {report.restarting:.0f} s" if report.restarts else "never"
    evaluated = [
        ["finals", f"{report.remeasured} evaluations"],
        ["cost model", model],
        ["time in evaluations", spent],
        ["ranks restarted", restarts],
    ]
    here = bool(report.endings)  # an imported study's trials are elsewhere
    rows = [
        ["device", device_text(report.key)],
        ["world size", str(report.key.world_size)],
        ["tuned for", tuned_for(report.key)],
        ["finished", _date(report.finished_at)],
        ["space", f"{report.space_size} valid configs" + f", {report.searched} evaluated" * here],
        *(evaluated if here else []),
        ["study", f"{report.study_id}, seed {report.seed}"],
        *([name.replace("_", " "), value or "none"] for name, value in versions.items() if name != "space"),
        ["space fingerprint", versions["space"]],
    ]
    return f"## How this was found\n\n{table(['', ''], rows)}\n\nTo repeat: {markdown_code(report.repeat)}"


def _date(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _short(reason: str, longest: int = 90) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, Taxes):
        return summary(value)
    if isinstance(value, Config):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value
