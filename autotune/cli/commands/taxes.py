"""``tune taxes WORKLOAD``: what a bulk-synchronous program pays, measured on a ladder of variants of one problem."""

from __future__ import annotations

import json as jsonlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import output, session
from autotune.cli.commands.tune import say_where, task_here
from autotune.cli.interrupts import exit_code
from autotune.cli.options import Database, Json, RegimeName, Request, masked
from autotune.db import CacheKey, Entry
from autotune.errors import AutotuneError, NoDatabase
from autotune.outcome import DEFAULT_REGIME, Regime, regime_of
from autotune.problem import Problem
from autotune.results.figures import config_text, dashed, device_text, problem_text, regime_options, resource_text
from autotune.settings import default_database_url
from autotune.task import Task
from autotune.workloads import provenance_of

if TYPE_CHECKING:
    from autotune.db import Store
    from autotune.taxes.result import Taxes

Rounds = Annotated[
    int | None, typer.Option("--rounds", metavar="N", min=2, help="Rounds in which the rungs take turns.",
                             show_default="40; 3 under the interpreter")
]  # fmt: skip

TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Also trace one call on all ranks, into FILE for Perfetto."),
]


def measure_taxes(
    request: Request, rounds: Rounds = None, regime: RegimeName = DEFAULT_REGIME.value, db: Database = None,
    trace: TraceFile = None, json: Json = False,
) -> None:  # fmt: skip
    """Takes the problem's tuned config, times variants between it and the library's way, and stores the result with
    the study.
    """
    from autotune.cli.watch import bar
    from autotune.taxes.measure import Amount, choose_base, measure
    from autotune.taxes.result import summary

    if trace is not None:
        output.check_file(trace)
    machine, workload, wanted = session.machine_to_measure_on(), request.workload, regime_of(regime)
    task = task_here(request, machine)
    try:
        with session.open_store(db, create=False) as store:
            entry = _entry(request, task, wanted, store, db)
            trials = [
                (trial.config, trial.evaluation.latency.median)
                for trial in store.trials(entry.study_id)
                if trial.evaluation.latency is not None
            ]
    except NoDatabase as error:
        told = _untuned(request, task.problem, wanted, db, "has not been tuned here")
        raise NoDatabase(f"no database at {masked(db or default_database_url())} yet: {told}") from error
    say_where(task)
    winner = entry.winner.config
    base = choose_base(workload, task, winner, trials)
    try:
        with closing(session.make_gang(workload, task)) as gang, bar(_line) as watch:
            output.say("starting the ranks")
            gang.start()
            amount, tracing = Amount.on(machine, rounds), trace is not None
            found = measure(workload, task, gang, winner, base, amount, watch, tracing)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        output.say("interrupted; nothing was stored")
        raise typer.Exit(exit_code()) from None
    try:
        with session.open_store(db, create=False) as store:
            store.attach(entry.study_id, "taxes", found.to_json())
    finally:  # what was measured is not lost with the database
        if trace is not None:
            _write_trace(found, trace)
        if json:
            output.data_json({**summary(found), "measured": jsonlib.loads(found.to_json())})
        else:
            output.data(_text(request, task, entry, found))
    output.say(f"stored with study {entry.study_id}")
    output.next_step(f"{request.command('report', db)} --open")


def _write_trace(found: Taxes, file: Path) -> None:
    from autotune.taxes.ladder import RUNGS
    from autotune.timeline import perfetto

    output.write(jsonlib.dumps(perfetto(found.traces, RUNGS)), file, "a trace, which ui.perfetto.dev opens,")


def _entry(request: Request, task: Task[Problem], regime: Regime, store: Store, db: str | None) -> Entry:
    """The problem's entry of today's kernels. Raises AutotuneError where it has to be tuned first."""
    key, today = CacheKey.of(task, regime), provenance_of(request.workload)
    entry = store.entry(key, today)
    if entry is not None:
        return entry
    stale = next((each for each in store.entries(key.workload) if each.key == key), None)
    why = "has not been tuned here" if stale is None else f"was tuned before {stale.provenance.changes(today)}"
    raise AutotuneError(_untuned(request, task.problem, regime, db, why))


def _untuned(request: Request, problem: Problem, regime: Regime, db: str | None, why: str) -> str:
    again = request.command(db=db) + regime_options(regime)
    needs = f"the taxes are those of a tuned config, and {dashed(problem.workload)} {problem_text(problem.as_dict())}"
    return f"{needs} {why}; tune it first: {again}"


def _text(request: Request, task: Task[Problem], entry: Entry, found: Taxes) -> str:
    from autotune.report import waterfall

    caveat = waterfall.caveat(found)
    head = f"{request.word}  {problem_text(task.problem.as_dict())}\n" + (f"\n{caveat}\n" if caveat else "")
    lines = [("device", device_text(entry.key)), *waterfall.table(found)]
    if (roofline := entry.winner.roofline) is not None:
        size, name = waterfall.unit(roofline.limit)
        lines.append(("roofline", f"{roofline.limit / size:.1f} {name}: {resource_text(roofline.slowest)}"))
    lines.append(("winner", config_text(entry.winner.config)))
    if found.base != entry.winner.config:
        lines.append(("tile of", config_text(found.base)))
    told = "\n".join(waterfall.notes(found))
    return "\n".join([head, "\n".join(waterfall.waterfall(found)), "", output.named(lines), "", told])


def _line(phase: str, done: int, of: int) -> str:
    return f"{phase}: {of} {'rungs' if phase == 'checking' else 'rounds'}"
