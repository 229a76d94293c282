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
    finals,
    headline,
    importance,
    origin,
    parallel,
    routings,
    search,
    slices,
    taxes,
    timeline,
)
from autotune.results.figures import asked_text, device_text
from autotune.results.study import Study
from autotune.text import visible

VIEWS = (
    headline.view,
    routings.view,
    search.view,
    parallel.view,
    slices.view,
    importance.view,
    finals.view,
    taxes.view,
    timeline.view,
)

UNFOLDED = ("headline",)
"""Views whose tables stay open beside their charts."""


def to_html(study: Study) -> str:
    views = [found for view in VIEWS if (found := view(study)) is not None]
    return page(f"{study.title}: {asked_text(study.key, study.problem)}", lead(study), views, _origin(study))


def page(title: str, lead: str, views: Sequence[View], end: str) -> str:
    """A page of views between what is said first and what comes last, both HTML."""
    charts = {chart.name: laid_out(chart).option for each in views for chart in each.charts}
    script, library = asset("page.js"), asset("echarts.min.js")
    return Template(asset("page.html")).substitute(
        policy=policy(script, library),
        title=_text(title),
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
    parts = [
        f'<p class="kicker">{_text(study.title)} · {_text(device_text(study.key))}</p>',
        f"<h1>{_text(first.verdict(study))}</h1>",
        f'<p class="problem">{_text(asked_text(study.key, study.problem))}</p>',
        f'<p class="facts">{" · ".join(map(_text, first.facts(study)))}</p>',
        *(f'<p class="note">{_text(note)}</p>' for note in first.notes(study)),
    ]
    if study.winner is not None:
        name = "The winner" if study.result is not None else "The fastest so far"
        parts += [f"<p><strong>{name}:</strong> {_text(first.words(study))}</p>", _copies(study.copies)]
    return "\n".join(parts)


def section(view: View) -> str:
    """A view as HTML: its charts, and its tables in a fold that stays open where nothing is drawn."""
    charts = "".join(_chart(chart) for chart in view.charts)
    tables = "".join(table(each) for each in view.tables)
    hint = f'<p class="hint drawn">{_text(view.hint)}</p>' if view.hint else ""
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in view.notes if note)
    keep = ' class="keep"' if view.name in UNFOLDED or not view.charts else ""
    fold = f"<details open{keep}><summary>As a table</summary>{tables}</details>" if tables else ""
    return (
        f'<section id="{escape(view.name)}"><h2>{_text(view.title)}</h2><p>{_text(view.text)}</p>{hint}'
        f'<div class="charts">{charts}</div>{notes}{fold}</section>'
    )


def table(of: Table, links: Sequence[str] = ()) -> str:
    """A table that scrolls sideways where it is too wide; ``links`` go from the first cell of each row."""
    align = [' class="r"' if of.align[place : place + 1] == "r" else "" for place in range(len(of.header))]
    caption = f"<caption>{_text(of.caption)}</caption>" if of.caption else ""
    head = ""
    if any(of.header):
        head = f"<thead><tr>{_cells('th', of.header, align)}</tr></thead>"
    body = [_cells("td", row, align) for row in of.rows]
    for place, link in enumerate(links):
        name = _text(of.rows[place][0])
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
        f'aria-label="{_text(chart.label)}" style="--phone:{heights.phone}px;--screen:{heights.screen}px"></div>'
    )


PASTED = {"Python": "Python", "command": "Command line: check and measure it once", "JSON": "JSON"}


def _copies(of: Mapping[str, str]) -> str:
    pieces = "".join(_copy_line(PASTED[name], text) for name, text in of.items())
    return f'<details open class="copies"><summary>The config to copy</summary>{pieces}</details>'


def _origin(study: Study) -> str:
    view = origin.view(study)
    again = _copy_line("Tune it again:", study.repeat) if study.repeat else ""
    return f'<section id="origin"><h2>{view.title}</h2>{again}{"".join(map(table, view.tables))}</section>'


def _copy_line(text: str, line: str) -> str:
    button = '<button type="button" class="copy drawn">copy</button>'
    return f"<div><p>{_text(text)} {button}</p><pre>{_lines(line)}</pre></div>"


def _cells(tag: str, row: Iterable[str], align: Sequence[str]) -> str:
    return "".join(f"<{tag}{side}>{_text(text)}</{tag}>" for text, side in zip(row, align, strict=True))


def _text(text: str) -> str:
    """One line of text that HTML shows as it is."""
    return escape(visible(text))


def _lines(text: str) -> str:
    return escape("\n".join(visible(line) for line in text.split("\n")))


@cache
def asset(name: str) -> str:
    """A file that the page is made from."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
