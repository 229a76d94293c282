"""``tune grid WORKLOAD``: many sizes with one gang, each search started from what its neighbours found."""

from __future__ import annotations

import itertools
import math
from contextlib import closing
from typing import Any

import typer

from autotune.cli import output, session
from autotune.cli.commands.tuning.tune import INTERRUPTED, Effort, Force, Seconds, Seed, Trials, limits_of, say_where
from autotune.cli.options import Database, Json, Request
from autotune.db import Entry, Store
from autotune.errors import InputError
from autotune.report.figures import fastest, microseconds, options_text

MOST_PROBLEMS = 1000


def grid() -> None:
    """Tune a workload for many sizes: 16,64,256 is a list, 1..1024 every doubling from one to the other."""


def sizes(text: str, name: str) -> list[int]:
    """``16,64,256`` or ``1..1024`` (doubling), or both mixed; raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()) or int(first) < 1:
            raise InputError(f"--{name} {text}: a list like 16,64,256 or a doubling range like 1..1024 is needed")
        end = int(last) if dots else int(first)
        if end < int(first):
            raise InputError(f"--{name} {text}: the range {part.strip()} has its end before its beginning")
        value = int(first)
        while value <= end:
            found.append(value)
            value *= 2
    return list(dict.fromkeys(found))


def combinations(request: Request) -> list[dict[str, int]]:
    """Every combination of the sizes that were given, the last one varying fastest."""
    lists = {name: sizes(request.given[name], name) for name in request.size_names if name in request.given}
    count = math.prod(len(values) for values in lists.values())
    if count > MOST_PROBLEMS:
        raise InputError(f"{count} problems: at most {MOST_PROBLEMS} can be tuned at a time")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def tune_grid(
    request: Request, budget: Seconds = None, trials: Trials = None, effort: Effort = None, seed: Seed = 0,
    force: Force = False, db: Database = None, json: Json = False,
) -> None:  # fmt: skip
    """Tune every combination of sizes; budgets are for each. The same command continues what was interrupted."""
    from autotune.cli.watch import watching
    from autotune.tuning import EFFORTS, tune

    machine = session.machine()
    chosen, limits = limits_of(machine, effort, trials, budget)
    session.check_ranks(request.world_size(machine), machine)
    every = combinations(request)
    problems = [Request(request.workload, {**request.given, **each}).problem(machine) for each in every]
    varied = [name for name in every[0] if len({each[name] for each in every}) > 1]
    for problem in problems:
        session.check_work(problem, machine)
    say_where(problems[0], machine)
    workload = request.workload
    rows: list[dict[str, Any]] = []
    interrupted = False
    heap_bytes = max(workload.heap_bytes(problem) for problem in problems)
    with (
        Store.open(db) as store, session.terminable(),
        session.make_screen(workload, problems[0], machine) as screen,
        closing(session.make_gang(workload, problems[0], machine, heap_bytes)) as gang,
    ):  # fmt: skip
        for problem in problems:
            gang.turn_to(workload, problem)
            screen.turn_to(workload, problem)
            here = {name: getattr(problem, name) for name in varied}
            if varied:
                output.say(options_text(here))
            with watching(problem, machine) as watch:
                result = tune(
                    workload, problem, machine, store, gang, screen,
                    budget=limits, effort=EFFORTS[chosen], seed=seed, force=force, watch=watch,
                )  # fmt: skip
            if result.interrupted:
                interrupted = True
                break
            rows.append(_row(here, result.entry, store, rows))
            if not json:
                _print(rows)
    if json:
        output.data_json([{name: value for name, value in row.items() if name != "winner"} for row in rows])
    if interrupted:
        output.say("interrupted; the same command again continues where it stopped")
        raise typer.Exit(INTERRUPTED)
    if any(row["latency"] is None for row in rows):
        raise typer.Exit(1)


def _row(sizes: dict[str, int], entry: Entry | None, store: Store, before: list[dict[str, Any]]) -> dict[str, Any]:
    """What a size came to, and what it would have come to with the config of the size before."""
    from autotune.cli.entries import entry_dict

    row: dict[str, Any] = {"sizes": sizes, "latency": None, "with_neighbour": None, "winner": None}
    if entry is None:
        return row
    row |= {**entry_dict(entry), "winner": entry.winner}
    neighbour = before[-1]["winner"] if before else None
    if neighbour is not None:
        found = [t.evaluation.latency for t in store.trials(entry.study_id) if t.config == neighbour.config]
        medians = [latency.median for latency in found if latency is not None]
        row["with_neighbour"] = min(medians) / entry.winner.latency.median if medians else None
    return row


def _print(rows: list[dict[str, Any]]) -> None:
    """The last row as a line; the heading before the first."""
    header = ("sizes", "winner", "speedup", "limit", "mode", "with the config before")
    if len(rows) == 1:
        output.data("  ".join(f"{word:<22}" for word in header).rstrip())
    row = rows[-1]
    cells = [" ".join(f"{name}={value}" for name, value in row["sizes"].items())]
    winner = row["winner"]
    if winner is None:
        cells.append("nothing could be measured")
    else:
        name = fastest(winner.baselines)
        ratio = f"{winner.baselines[name].median / winner.latency.median:.2f}x {name}" if name else ""
        share = f"{row['limit_share']:.2f}" if row["limit_share"] is not None else ""
        neighbour = f"{row['with_neighbour']:.2f} times as long" if row["with_neighbour"] is not None else ""
        cells += [microseconds(winner.latency.median), ratio, share, str(winner.config["mode"]), neighbour]
    output.data("  ".join(f"{cell:<22}" for cell in cells).rstrip())
