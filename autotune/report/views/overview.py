"""Many studies as one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune.config import Config
from autotune.report.view import Table
from autotune.results.figures import asked_text, config_text, latency_text
from autotune.results.library import mode_name
from autotune.results.study import Study, mode_of

HEADER = ("workload", "problem", "GPUs", "winner", "latency", "speedup", "of perfect overlap", "tuned")
DEVICE = HEADER.index("GPUs")


def table(studies: Sequence[Study]) -> Table:
    """Without columns that say nothing: empty ones, and one device."""
    asked = Counter((study.title, asked_text(study.key, study.problem)) for study in studies)
    rows = [_cells(study, is_alone=asked[study.title, asked_text(study.key, study.problem)] == 1) for study in studies]
    kept = [place for place in range(len(HEADER)) if any(row[place] for row in rows)]
    if len({row[DEVICE] for row in rows}) == 1:
        kept.remove(DEVICE)
    align = "".join("llllrrrl"[place] for place in kept)
    return Table([HEADER[place] for place in kept], [[row[place] for place in kept] for row in rows], align)


def _cells(study: Study, *, is_alone: bool) -> list[str]:
    of, moment, replayed = study.result, study.last_moment, study.record.provenance.replay_of
    first = of.speedup if of is not None else None
    told = "" if is_alone else f" (study {study.record.id})"
    return [
        study.title,
        asked_text(study.key, study.problem) + told,
        f"{study.key.world_size} × {study.key.device}",
        _winner(study, study.winner) if study.winner is not None else "",
        latency_text(of.latency, of.regime) if of is not None else "unfinished",
        first.text.removesuffix(" (by spread)") if first is not None else "",
        f"{100 * of.limit.share:.0f} %" if of is not None and of.limit is not None else "",
        f"replay of {replayed}" if replayed else f"{moment:%Y-%m-%d %H:%M}" if moment is not None else "",
    ]


def _winner(study: Study, config: Config) -> str:
    """The mode; of a kernel without modes its config."""
    mode = mode_of(config)
    if mode not in ("", "kernel"):
        return mode_name(study.key, mode)
    return config_text(Config({name: value for name, value in config.items() if name != "mode"}))
