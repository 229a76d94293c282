"""``tune demo``: the tuning loop over a table that was recorded on GPUs; needs none."""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import output
from autotune.cli.interrupts import exit_code
from autotune.cli.options import Request, completing
from autotune.errors import InputError, UnknownWorkload
from autotune.machine import INTERPRETED
from autotune.settings import user_data_folder
from autotune.task import Task
from autotune.workloads import installed_workload

if TYPE_CHECKING:
    from autotune.recordings.recording import Recording
    from autotune.recordings.replay import Replay
    from autotune.tuning import Result


def _tables() -> list[str]:
    from autotune.recordings.tables import names

    return names()


Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="A table of the package, or the file of tune record.",
        autocompletion=completing(_tables),
    ),
]
Trials = Annotated[int, typer.Option("--trials", metavar="N", help="Stop after N configs.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the search.")]
Open = Annotated[bool, typer.Option("--open", help="Show the report as a web page in a browser.")]


DEFAULT = "ag-rows-1024"


def demo(table: Table = DEFAULT, trials: Trials = 120, seed: Seed = 0, open: Open = False) -> None:
    """Tune a recorded search space, without a GPU: real search and report, latencies measured before on four.

    The result goes into a database of its own, and no look-up serves it.
    """
    from autotune.recordings import tables
    from autotune.recordings.file import read

    recorded = read(tables.file_of(table))
    ranks = recorded.problem.get("world_size")
    if ranks is None:
        raise InputError(f"table {table}: its problem has no world_size; give a table that tune record wrote")
    where = f"{ranks} × {recorded.machine.device}, recorded {recorded.recorded_at:%Y-%m-%d}"
    output.say(f"replaying {len(recorded.evaluations)} configs measured on {where}; nothing runs on a GPU here")
    result, place = _replayed(recorded, table, where, trials, seed)
    if result.entry is None:
        raise typer.Exit(exit_code() if result.interrupted else 1)
    if open:
        from autotune.cli.commands import report
        from autotune.cli.entry_filter import EntryFilter

        report.report(EntryFilter(), db=str(place), open=True)


def _replayed(recorded: Recording, table: str, where: str, trials: int, seed: int) -> tuple[Result, Path]:
    """Run the loop and print its result; also the database. What it imports takes seconds."""
    from autotune.cli import summary
    from autotune.cli.watch import watching
    from autotune.db import Store
    from autotune.recordings.replay import Replay
    from autotune.tuning import EFFORTS, limits_of, tune
    from autotune.tuning.screening import Screen

    effort, budget = limits_of(recorded.machine, None, trials, None, seed)
    try:
        found = installed_workload(recorded.workload)
    except UnknownWorkload as error:
        raise InputError(
            f"table {table}: {error}; of a workload of your own, AUTOTUNE_WORKLOADS must name the file"
        ) from error
    problem, reduced, replay = recorded.problem_of(found), recorded.reduced(found), Replay(recorded)
    provenance = recorded.provenance.as_replay(recorded.recorded_at)
    with _emptied(table) as place, Store.open(place) as store:
        # Nothing is compiled, as under the interpreter; and one round: a table answers the same each time.
        task = Task(problem, recorded.machine)
        with Screen(reduced, Task(problem, INTERPRETED)) as screen, watching(task, where=where) as watch:
            result = tune(
                reduced, task, store, replay, screen, budget=budget,
                effort=replace(EFFORTS[effort], rounds=1, routings=0), seed=seed, provenance=provenance,
                watch=lambda progress: watch(progress) if progress.trials else None,
            )  # fmt: skip
        summary.present(
            result, Request(found, {}), problem, store, db=str(place), json=False,
            note=_note(recorded, replay), steps=_steps(result, table),
        )  # fmt: skip
    return result, place


def _folder() -> Path:
    """The folder of demos' databases; a new temporary one where the user's data folder cannot be written."""
    usual = user_data_folder() / "demo"
    try:
        usual.mkdir(parents=True, exist_ok=True)
        if os.access(usual, os.W_OK):
            return usual
        reason = "no permission to write"
    except OSError as error:
        reason = error.strerror or str(error)
    instead = Path(tempfile.mkdtemp(prefix="tune-demo-"))
    output.say(f"folder {usual}: {reason}; the demo's database is in {instead}")
    return instead


@contextmanager
def _emptied(table: str) -> Iterator[Path]:
    """The demo's database, without an earlier run's results: the search would start from them. While another demo of
    the table runs, one elsewhere.
    """
    from autotune.recordings.tables import ENDING

    place = _folder() / f"{Path(table).name.removesuffix(ENDING)}.db"
    with open(f"{place}.busy", "ab") as busy:
        try:
            fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            place = Path(tempfile.mkdtemp(prefix="tune-demo-")) / place.name
            output.say(f"another demo of this table is running; this one's database is in {place.parent}")
        for file in (place, Path(f"{place}-wal"), Path(f"{place}-shm")):
            file.unlink(missing_ok=True)
        yield place


def _note(recorded: Recording, replay: Replay) -> str:
    evaluations = recorded.evaluations
    seconds = sum(evaluations[config].seconds["total"] for config in set(replay.asked) & evaluations.keys())
    when = f"{recorded.recorded_at:%Y-%m-%d}"
    return f"replayed: measured in {seconds:.1f} s on {when}; no look-up serves this result"


def _steps(result: Result, table: str) -> list[tuple[str, str]]:
    """Commands to try after this one, or how to go on where it was interrupted."""
    if result.entry is None:
        told = "Interrupted. Next:  tune demo" if result.interrupted else "No config could be measured in these trials."
        return [("", told)]
    from autotune.recordings.tables import names

    again = f"tune demo {shlex.quote(table)} --open" if table != DEFAULT else "tune demo --open"
    return [
        ("Tables:", ", ".join(names())),
        ("Next:", f"{again}  # the same as a web page"),
        ("", f"{'tune doctor':{len(again)}}  # what this machine can tune"),
    ]
