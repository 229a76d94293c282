"""The index of a folder of pages: every study with its result, and a link to its page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autotune.db import StudyRecord
from autotune.report.page.document import as_text, page, table, words
from autotune.report.views import crossover, gaps, overview
from autotune.results.figures import INTERPRETER_NOTE, device_text
from autotune.results.library import libraries
from autotune.results.study import Study
from autotune.text import counted

SPEEDUP = "Speedup: how many times as fast as the fastest way of the libraries that was measured beside it."


def file_name(study: Study) -> str:
    """The page's own, within the folder."""
    letters = [letter if letter.isascii() and letter.isalnum() else "-" for letter in study.title]
    return f"{''.join(letters)[:60]}-{study.record.id}.html"


def to_index(studies: Sequence[Study], unfinished: Sequence[StudyRecord] = ()) -> str:
    """The page ``index.html``: speedups over the sizes, what is missing, then every study."""
    every = table(overview.table(studies), [file_name(study) for study in studies])
    text = f"<p>{SPEEDUP}</p>" if any(map(_speedup, studies)) else ""
    end = f'<section id="studies"><h2>All studies</h2>{text}{every}</section>{words()}'
    title, lacking = _title(studies), gaps.view(studies, unfinished)
    head = f"{_kicker(studies)}<h1>{as_text(title)}</h1>{_lead(studies)}"
    return page(title, head, [*crossover.views(studies), *([lacking] if lacking else [])], end)


def _kicker(studies: Sequence[Study]) -> str:
    machines = dict.fromkeys(device_text(study.key) for study in studies)
    return f'<p class="kicker">{as_text(" · ".join(machines))}</p>'


def _title(studies: Sequence[Study]) -> str:
    """The span of the speedups; their count where there are none."""
    speedups = {study.key: found for study in studies if (found := _speedup(study)) is not None}
    if not speedups:
        tuned = sum(study.result is not None for study in studies)
        return counted(tuned, "tuned problem") if tuned else counted(len(studies), "unfinished problem")
    called = dict.fromkeys(each for key in speedups for each in libraries(key) or ("the fastest baseline",))
    return f"{_span(list(speedups.values()))} times as fast as {' + '.join(called)}"


def _lead(studies: Sequence[Study]) -> str:
    """The span of the speedups by workload and machine, where there are several; what holds for the times."""
    several = len({device_text(study.key) for study in studies}) > 1
    found: dict[str, list[float]] = {}
    for study in studies:
        name = study.title + f" on {device_text(study.key)}" * several
        found.setdefault(name, []).extend([each] if (each := _speedup(study)) is not None else [])
    facts = [_fact(name, speedups) for name, speedups in found.items() if speedups]
    notes = [INTERPRETER_NOTE] if all(study.key.is_interpreted for study in studies) else []
    if replayed := sum(bool(study.record.provenance.replay_of) for study in studies):
        count = "All" if replayed == len(studies) else f"{replayed} of {len(studies)}"
        notes.append(f"{count} results are replays of recorded tables: no look-up serves them.")
    return "".join(
        f'<p class="{kind}">{as_text(text)}</p>'
        for kind, texts in (("facts", facts), ("note", notes))
        for text in texts
    )


def _speedup(study: Study) -> float | None:
    ratio = study.result.ratio if study.result is not None else None
    return None if ratio is None else ratio.value


def _span(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values))))


def _fact(name: str, values: Sequence[float]) -> str:
    mean = f", geometric mean {statistics.geometric_mean(values):.2f}" if len(values) > 1 else ""
    return f"{name}: {_span(values)}{mean}, {counted(len(values), 'problem')}"
