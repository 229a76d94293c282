"""The index of a folder of pages: every study with its result, and a link to its page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from autotune.report.figures import dashed, device_text, latency_text, problem_text
from autotune.report.page.document import asset, policy
from autotune.report.page.study import Study, last_moment
from autotune.text import visible

HEADER = ("workload", "problem", "device", "latency", "times as fast", "as", "mode", "tuned")


def file_name(study: Study) -> str:
    """The page's own, within the folder."""
    letters = [letter if letter.isascii() and letter.isalnum() else "-" for letter in study.title]
    return f"{''.join(letters)[:60]}-{study.record.id}.html"


def to_index(studies: Sequence[Study]) -> str:
    """The page ``index.html``; needs no script."""
    head = "".join(f"<th>{name}</th>" for name in HEADER)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(study))}</tr>" for study in studies)
    return Template(asset("index.html")).substitute(
        policy=policy(), style=asset("page.css"), count=len(studies), head=head, rows=rows
    )


def _cells(study: Study) -> list[str]:
    """As HTML."""
    report, key, moment = study.report, study.record.key, last_moment(study)
    first = report.speedups[0] if report is not None and report.speedups else None
    mode = study.winner.get("mode", "") if study.winner is not None else ""
    texts = [
        problem_text(study.problem),
        device_text(key),
        latency_text(report.latency, report.regime) if report is not None else "unfinished",
        f"{first.ratio.value:.2f}" if first is not None else "",
        first.baseline if first is not None else "",
        str(mode),
        f"{moment:%Y-%m-%d %H:%M}" if moment is not None else "",
    ]
    link = f'<a href="{escape(file_name(study))}">{escape(visible(dashed(key.workload)))}</a>'
    return [link, *(escape(visible(text)) for text in texts)]
