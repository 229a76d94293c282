"""``tune show`` and ``tune lookup``: a cache entry, and the config that a program gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import typer

from autotune.cli import output, session
from autotune.cli.commands.stored import Form, InStudy, of_study, present
from autotune.cli.entry_filter import EntryFilter
from autotune.cli.options import Database, Json, RegimeName, Request
from autotune.db import CacheKey, Entry, Provenance, TrialRecord
from autotune.errors import NoDatabase
from autotune.outcome import DEFAULT_REGIME, Regime, regime_of
from autotune.results.figures import (
    config_text,
    evaluated,
    microseconds,
    outcomes_text,
    problem_text,
    regime_options,
)
from autotune.results.result import Result
from autotune.settings import default_database_url
from autotune.task import Task
from autotune.text import Table, counted
from autotune.workloads import provenance_of


def show_entry(
    request: Request, regime: RegimeName = DEFAULT_REGIME.value, study: InStudy = None, form: Form = None,
    db: Database = None, json: Json = False,
) -> None:  # fmt: skip
    """On a miss, the nearest entry is shown with the fields in which it differs; exit code 1. Without any dimension, if
    the default problem is not there, whatever is: one entry in full, several as a list.
    """
    if study is not None:
        with session.open_store(db, create=False) as store:
            entries = EntryFilter.of(request).entries(store)
        _present(of_study(entries, study), request, db, form, json)
        return
    machine = session.machine()
    problem = request.problem(machine)
    key, provenance = CacheKey.of(Task(problem, machine), regime_of(regime)), provenance_of(request.workload)
    entry, nearest, begun = _find(key, provenance, db)
    if entry is not None:
        _present([entry], request, db, form, json)
        return
    differences = nearest.key.differences(key) if nearest else {}
    if differences and not request.given and not begun:
        wanted = EntryFilter.of(request, regime=regime)
        with session.open_store(db, create=False) as store:
            others = [entry for entry in store.entries(str(wanted.name)) if wanted.takes(entry.key)]
        if others:
            _present(others, request, db, form, json)
            return
    stale = nearest.provenance.differences(provenance) if nearest else {}
    if json:
        output.data_json(
            {
                "found": False,
                "problem": problem.as_dict(),
                "nearest": Result.of(nearest).to_dict() if nearest else None,
                "key_differences": differences,
                "provenance_differences": stale,
                "unfinished": begun,
            }
        )
    else:
        lines = [("not tuned", f"{problem_text(problem.as_dict())} world_size={problem.world_size}")]
        if begun is not None:
            lines.append(("unfinished", f"{begun}; the same command continues it"))
        if nearest is not None:
            of = Result.of(nearest)
            lines += [("nearest", of.title), ("", f"{microseconds(of.microseconds)}: {config_text(of.config)}")]
            if not differences:
                lines.append(("stale", f"of the same problem and machine: {nearest.provenance.changes(provenance)}"))
        output.styled(*output.named_lines(lines))
        rows = [(name, then, now) for name, (then, now) in {**differences, **stale}.items()]
        if rows:
            output.data("\n" + output.columns(Table(("field", "stored", "requested"), rows)))
        output.next_step(f"{request.command(db=db)}{regime_options(regime)}")
    raise typer.Exit(1)


def look_up(
    request: Request, regime: RegimeName = DEFAULT_REGIME.value, db: Database = None, json: Json = False
) -> None:
    """The config goes to stdout, its source (exact, range, nearest, predicted or default) to stderr."""
    from autotune.runtime.lookup import lookup

    machine = session.machine()
    problem = request.problem(machine)
    found = lookup(request.workload, problem, machine=machine, url=db or default_database_url(), regime=regime)
    if json:
        output.data_json(
            {
                "config": dict(found.config),
                "source": found.source,
                "reason": found.reason,
                "entry": Result.of(found.entry).to_dict() if found.entry else None,
            }
        )
        return
    output.data(found.config.to_json())
    of = f" of {Result.of(found.entry).title}" if found.entry is not None and found.source != "exact" else ""
    output.say(f"{found.source}{of}" + (f": {found.reason}" if found.reason else ""))
    if found.source != "exact" and not found.by_environment:
        output.next_step(f"{request.command(db=db)}{regime_options(regime)}")


def _present(entries: Sequence[Entry], request: Request, db: str | None, form: str | None, json: bool) -> None:
    if not json:
        present(entries, request.word, db, form, request.workload)
    elif len(entries) == 1:
        output.data_json({"found": True, **Result.of(entries[0], request.workload).to_dict()})
    else:
        output.data_json({"found": True, "entries": [Result.of(entry).to_dict() for entry in entries]})


def _find(key: CacheKey, provenance: Provenance, db: str | None) -> tuple[Entry | None, Entry | None, str | None]:
    """The entry itself, the nearest one, and the trials of an unfinished study; nothing if there is no database."""
    try:
        with session.open_store(db, create=False) as store:
            same = [study for study in store.studies("running") if (study.key, study.provenance) == (key, provenance)]
            begun = [_begun(store.trials(study.id), key.regime) for study in same]
            return store.entry(key, provenance), store.nearest(key), begun[0] if begun else None
    except NoDatabase as error:
        output.say(str(error))
        return None, None, None


def _begun(trials: Sequence[TrialRecord], regime: str) -> str:
    """``14 trials (12 measured, 2 crashed), the best 408.2 µs``."""
    from autotune.tuning.finals import of_search

    outcomes = Counter(trial.evaluation.outcome for trial in of_search(trials))
    latencies = [trial.evaluation.latency for trial in trials if trial.evaluation.latency is not None]
    best = min((latency.of(Regime(regime)) for latency in latencies), default=None)
    told = f"{counted(evaluated(outcomes), 'trial')} ({outcomes_text(outcomes)})"
    return told if best is None else f"{told}, the best {microseconds(best)}"
