"""Many studies as one table."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report.view import Table
from autotune.results.figures import asked_text, latency_text
from autotune.results.study import Study, mode_of

HEADER = ("workload", "problem", "device", "mode", "latency", "times as fast", "as", "of the limit", "tuned")


def table(studies: Sequence[Study]) -> Table:
    return Table(HEADER, [_cells(study) for study in studies], "llllrllrl")


def _cells(study: Study) -> list[str]:
    of, moment = study.result, study.last_moment
    first = of.speedup if of is not None else None
    return [
        study.title,
        asked_text(study.key, study.problem),
        f"{study.key.world_size} × {study.key.device}",
        mode_of(study.winner) if study.winner is not None else "",
        latency_text(of.latency, of.regime) if of is not None else "unfinished",
        first.text if first is not None else "",
        first.baseline if first is not None else "",
        f"{of.limit.share:.2f}" if of is not None and of.limit is not None else "",
        f"{moment:%Y-%m-%d %H:%M}" if moment is not None else "",
    ]
