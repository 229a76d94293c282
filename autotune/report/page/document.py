"""The page: one HTML file with everything in it.

Its Content-Security-Policy allows two scripts, by the hashes of their text, and no connection of any kind: neither a
hostile name nor a chart can run or fetch anything. Without scripts the tables say everything; charts replace them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from string import Template

from autotune.report import lead as first
from autotune.report.page.layout import laid_out
from autotune.report.view import Chart, Table, View
from autotune.report.views import (
    crossover,
    finals,
    headline,
    importance,
    origin,
    parallel,
    routings,
    search,
    slices,
    steps,
    taxes,
    timeline,
)
from autotune.results.figures import asked_text
from autotune.results.study import Study
from autotune.text import visible

VIEWS = (
    timeline.view,
    taxes.view,
    headline.view,
    routings.view,
    steps.view,
    slices.view,
    parallel.view,
    importance.view,
    finals.view,
    search.view,
)
"""Why it is fast, how fast it is, what makes it fast, how it was found."""

BEFORE_RANGE = ("timeline", "taxes", "headline", "routings")

UNFOLDED = ("headline",)
"""Views whose tables stay open beside their charts."""

WORDS = (
    ("iris-autotune", "what made this page: it searches tile sizes and how data moves as one space, on all GPUs"),
    (
        "NCCL, cuBLAS",
        "NVIDIA's libraries for communication between GPUs and for matrix products; AMD's: RCCL, hipBLASLt",
    ),
    ("perfect overlap", "a call that takes as long as its slower part alone, communication or computation"),
    ("eager", "kernels launched one by one; the host runs ahead if it enqueues calls before the GPU gets to them"),
    ("CUDA graph", "launches recorded once and replayed together"),
    ("rank", "a process with one GPU; a call ends when the slowest rank is done"),
    ("config", "a value for each dimension of the search, such as tile sizes and who moves the data when"),
    ("mode", "the dimension that says how data moves: a family of kernels, each with dimensions of its own"),
    ("baseline, bsp", "the libraries' calls one after the other (bulk-synchronous), measured beside the winner"),
    ("finals", "the fastest configs and the baselines, measured once more in turns"),
)
"""The terms of a page, for a reader who has nothing else."""


def to_html(study: Study, studies: Sequence[Study] = ()) -> str:
    """The page of a study; ``studies`` may hold others of its range of sizes."""
    views = [found for view in VIEWS if (found := view(study)) is not None]
    in_range = crossover.around(study, studies)
    if in_range is not None:
        place = sum(each.name in BEFORE_RANGE for each in views)
        views.insert(place, in_range)
    title = f"{first.verdict(study)}: {study.title} {asked_text(study.key, study.problem)}"
    return page(title, lead(study), views, f"{_origin(study)}{words()}")


def page(title: str, lead: str, views: Sequence[View], end: str) -> str:
    """A page of views between what is said first and what comes last, both HTML."""
    charts = {chart.name: laid_out(chart).option for each in views for chart in each.charts}
    script, library = asset("page.js"), asset("echarts.min.js")
    return Template(asset("page.html")).substitute(
        policy=policy(script, library),
        title=as_text(title),
        style=asset("page.css"),
        lead=lead,
        views="\n".join(section(each) for each in views),
        end=end,
        library=_packed_library(),
        options=packed(json.dumps(charts, separators=(",", ":"), allow_nan=False)),
        script=script,
    )


def lead(study: Study) -> str:
    """The first screen: what was tuned, how it ended, the winner in words."""
    kind = "" if study.result is not None and study.result.is_faster else ' class="plain"'
    computed = first.operation(study)
    parts = [
        f'<p class="kicker">{as_text(study.title)} · {as_text(asked_text(study.key, study.problem))}</p>',
        f"<h1{kind}>{as_text(first.verdict(study))}</h1>",
        f'<p class="claim">{as_text(claim)}.</p>' if (claim := first.claim(study)) else "",
        f'<p class="facts">{as_text(first.circumstances(study))} {as_text(first.tried(study))}</p>',
        *(f'<p class="note">{as_text(note)}</p>' for note in first.notes(study)),
        f"<p><strong>What is computed:</strong> {as_text(computed)}.</p>" if computed else "",
    ]
    if study.winner is not None:
        name = "The winner" if study.result is not None else "The fastest so far"
        parts += [f"<p><strong>{name}:</strong> {as_text(first.words(study))}</p>", _copies(study.copies)]
    return "\n".join(filter(None, parts))


def section(view: View) -> str:
    """A view as HTML: its charts, and its tables in a fold that stays open where nothing is drawn. Charts without
    tables are nothing without scripts.
    """
    tabs = list(dict.fromkeys(chart.tab for chart in view.charts))
    charts = "".join(_tab(view, tab, is_first=tab == tabs[0]) for tab in tabs)
    buttons = "".join(_button(tab, is_first=tab == tabs[0]) for tab in tabs)
    switch = f'<p class="tabs drawn">{buttons}</p>' if len(tabs) > 1 else ""
    hint = f'<p class="hint drawn">{as_text(view.hint)}</p>' if view.hint else ""
    notes = "".join(f'<p class="note">{as_text(note)}</p>' for note in view.notes if note)
    tables = "".join(table(each) for each in view.tables)
    if charts and tables:
        keep = ' class="keep"' if view.name in UNFOLDED else ""
        tables = f"<details open{keep}><summary>As a table</summary>{tables}</details>"
    drawn = "" if tables or not charts else ' class="with-script"'
    text = f"<p>{as_text(view.text)}</p>" if view.text else ""
    return (
        f'<section id="{escape(view.name)}"{drawn}><h2>{as_text(view.title)}</h2>{text}{hint}{switch}{charts}'
        f"{notes}{tables}</section>"
    )


def _button(tab: str, *, is_first: bool) -> str:
    pressed, name = str(is_first).lower(), as_text(tab)
    return f'<button type="button" aria-pressed="{pressed}" data-tab="{name}">{name}</button>'


def _tab(view: View, tab: str, *, is_first: bool) -> str:
    """A tab's charts, the folded ones last."""
    charts = [chart for chart in view.charts if chart.tab == tab]
    plain, folded = ("".join(_chart(c) for c in charts if c.folded is fold) for fold in (False, True))
    more = f'<details class="drawn"><summary>{as_text(view.fold)}</summary><div class="charts">{folded}</div></details>'
    hidden = "" if is_first else " hidden"
    return f'<div data-tab="{as_text(tab)}"{hidden}><div class="charts">{plain}</div>{more if folded else ""}</div>'


def table(of: Table, links: Sequence[str] = ()) -> str:
    """A table that scrolls sideways where it is too wide; ``links`` go from the first cell of each row."""
    align = [' class="r"' if of.align[place : place + 1] == "r" else "" for place in range(len(of.header))]
    caption = f"<caption>{as_text(of.caption)}</caption>" if of.caption else ""
    head = ""
    if any(of.header):
        head = f"<thead><tr>{_cells('th', of.header, align)}</tr></thead>"
    body = [_cells("td", row, align) for row in of.rows]
    for place, link in enumerate(links):
        name = as_text(of.rows[place][0])
        body[place] = body[place].replace(f">{name}<", f'><a href="{escape(link)}">{name}</a><', 1)
    rows = "".join(f"<tr>{row}</tr>" for row in body)
    return f'<div class="scroll"><table>{caption}{head}<tbody>{rows}</tbody></table></div>'


def packed(text: str) -> str:
    """Compressed, as letters and digits: no name in it can end an element."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def _packed_library() -> str:
    return packed(asset("echarts.min.js"))


def policy(*scripts: str) -> str:
    """The page's Content-Security-Policy: these scripts run, nothing else does, and nothing is loaded."""
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rules = ("default-src 'none'", f"script-src {allowed}", "style-src 'unsafe-inline'", "img-src data:")
    return "; ".join((*rules, "base-uri 'none'", "form-action 'none'"))


def _chart(chart: Chart) -> str:
    kind, heights = "chart small" if chart.small else "chart", laid_out(chart)
    return (
        f'<div class="{kind}" role="img" data-chart="{escape(chart.name)}" '
        f'aria-label="{as_text(chart.label)}" style="--phone:{heights.phone}px;--screen:{heights.screen}px"></div>'
    )


PASTED = {"Python": "Python", "command": "Command line: check and measure it once", "JSON": "JSON"}


def _copies(of: Mapping[str, str]) -> str:
    pieces = "".join(_copy_line(PASTED[name], text) for name, text in of.items())
    return f'<details open class="copies"><summary>The config to copy</summary>{pieces}</details>'


def _origin(study: Study) -> str:
    view = origin.view(study)
    what = "Replay it again:" if study.record.provenance.replay_of else "Tune it again:"
    again = _copy_line(what, study.repeat) if study.repeat else ""
    return f'<section id="origin"><h2>{view.title}</h2>{again}{"".join(map(table, view.tables))}</section>'


def words() -> str:
    return f'<section id="words"><h2>Words</h2>{table(Table(["", ""], WORDS, "ll"))}</section>'


def _copy_line(text: str, line: str) -> str:
    button = '<button type="button" class="copy drawn">copy</button>'
    return f"<div><p>{as_text(text)} {button}</p><pre>{_lines(line)}</pre></div>"


def _cells(tag: str, row: Iterable[str], align: Sequence[str]) -> str:
    return "".join(f"<{tag}{side}>{as_text(text)}</{tag}>" for text, side in zip(row, align, strict=True))


def as_text(text: str) -> str:
    """One line of text that HTML shows as it is."""
    return escape(visible(text))


def _lines(text: str) -> str:
    return escape("\n".join(visible(line) for line in text.split("\n")))


@cache
def asset(name: str) -> str:
    """A file that the page is made from."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
