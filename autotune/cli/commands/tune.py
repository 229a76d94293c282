"""``tune WORKLOAD``: the main job. Checks what was asked, runs the loop under a live view, prints what came of it."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli import output, session
from autotune.cli.options import Database, Json, Request
from autotune.errors import InputError

INTERRUPTED = 130


def tune_workload(
    request: Request,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Stop after so long: 90s, 5m, 1.5h.")] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many configs.")] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            metavar="quick|standard|full",
            help="How thoroughly to search and to measure.",
            show_default="standard on GPUs, quick without",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the search and the inputs.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Tune anew even if there is a result.")] = False,
    config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Measure just this config, once; nothing is stored.")
    ] = None,
    db: Database = None,
    json: Json = False,
) -> None:
    """Tune one problem, or answer from the cache. The same command continues what was interrupted."""
    from autotune.cli import summary
    from autotune.cli.commands.evaluate import evaluate
    from autotune.cli.watch import watching
    from autotune.db import Store
    from autotune.tuning import EFFORTS, Budget, tune

    machine = session.machine()
    effort = effort or ("quick" if machine.is_interpreter else "standard")
    if effort not in EFFORTS:
        raise InputError(f"effort {effort!r}: allowed are {', '.join(EFFORTS)}")
    limits = Budget.of(EFFORTS[effort], trials, budget)
    session.check_ranks(request.world_size(machine), machine)
    problem = request.problem(machine)
    session.check_work(problem, machine)
    if machine.is_interpreter:
        output.say(
            f"no GPU here: kernels run on {problem.world_size} ranks under Triton's interpreter, "
            "whose times say nothing about GPUs"
        )
    workload = request.workload
    if config is not None:
        evaluate(workload, problem, machine, config, effort=EFFORTS[effort], seed=seed, json=json)
        return
    with Store.open(db) as store:
        with (
            session.terminable(),
            session.make_screen(workload, problem, machine) as screen,
            watching(problem, machine) as watch,
        ):
            gang = session.make_gang(workload, problem, machine)
            result = tune(
                workload, problem, machine, store, gang, screen,
                budget=limits, effort=EFFORTS[effort], seed=seed, force=force, watch=watch,
            )  # fmt: skip
        summary.present(result, request, problem, store, db=db, json=json)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.entry is None:
        raise typer.Exit(1)
