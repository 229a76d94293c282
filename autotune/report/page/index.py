"""The index of a folder of pages: every study with its result, and a link to its page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from autotune.db import StudyRecord
from autotune.report.page.document import page, table
from autotune.report.views import crossover, gaps, many, overview
from autotune.results.figures import INTERPRETER_NOTE, device_text
from autotune.results.study import Study
from autotune.text import counted, visible


def file_name(study: Study) -> str:
    """The page's own, within the folder."""
    letters = [letter if letter.isascii() and letter.isalnum() else "-" for letter in study.title]
    return f"{''.join(letters)[:60]}-{study.record.id}.html"


def to_index(studies: Sequence[Study], unfinished: Sequence[StudyRecord] = ()) -> str:
    """The page ``index.html``: how the winner changes with the size, what is missing, then every study."""
    every = table(overview.table(studies), [file_name(study) for study in studies])
    end = f'<section id="studies"><h2>All studies</h2>{every}</section>'
    tuned = sum(study.result is not None for study in studies)
    title = counted(tuned, "tuned problem") if tuned else counted(len(studies), "unfinished problem")
    views = [*many.views(studies), *crossover.views(studies)]
    lacking = gaps.view(studies, unfinished)
    return page(
        title, f"{_kicker(studies)}<h1>{title}</h1>{_lead(studies)}", [*views, lacking] if lacking else views, end
    )


def _kicker(studies: Sequence[Study]) -> str:
    machines = dict.fromkeys(device_text(study.key) for study in studies)
    return f'<p class="kicker">{escape(visible(" · ".join(machines)))}</p>'


def _lead(studies: Sequence[Study]) -> str:
    """The span of the speedups, by workload and machine."""
    several = len({device_text(study.key) for study in studies}) > 1
    found: dict[str, list[float]] = {}
    for study in studies:
        speedup = study.result.speedups[0].ratio if study.result is not None and study.result.speedups else None
        if speedup is not None:
            name = study.title + f" on {device_text(study.key)}" * several
            found.setdefault(name, []).append(speedup.value)
    facts = "".join(f'<p class="facts">{escape(visible(f"{name}: {_span(of)}"))}</p>' for name, of in found.items())
    interpreted = all(study.key.is_interpreted for study in studies)
    return facts + (f'<p class="note">{escape(INTERPRETER_NOTE)}</p>' if interpreted else "")


def _span(values: Sequence[float]) -> str:
    """Speedups of some problems in words."""
    ends = list(dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values))))
    text = f"{' to '.join(ends)} times as fast as the fastest baseline"
    if len(values) == 1:
        return text
    mean = f", geometric mean {statistics.geometric_mean(values):.2f}" if len(ends) > 1 else ""
    return f"{text}{mean}, {counted(len(values), 'problem')}"
