"""``tune WORKLOAD``, ``tune run FILE:CLASS``: the main job.

Checks the request, runs the loop under a live view, prints the result. With --config, measures that config alone.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Annotated

import typer

from autotune.cli import output, session
from autotune.cli.interrupts import exit_code
from autotune.cli.options import Database, Json, RegimeName, Request, one_of, refuse
from autotune.config import Config
from autotune.machine import Machine
from autotune.outcome import DEFAULT_REGIME, Regime, regime_of
from autotune.problem import Problem
from autotune.results.figures import config_text, latency_text, microseconds
from autotune.task import Task
from autotune.workloads import Workload

Seconds = Annotated[
    str | None,
    typer.Option(
        "--budget", metavar="TIME",
        help="Time for search and finals, once ranks have started and baselines are measured: 90s, 5m, 1.5h.",
    ),
]  # fmt: skip
Trials = Annotated[int | None, typer.Option("--trials", metavar="N", help="Stop after N configs.")]
Effort = Annotated[
    str | None,
    typer.Option(
        "--effort",
        **one_of(("quick", "standard", "full")),
        help="How thoroughly to search and measure.",
        show_default="standard on GPUs, quick without",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the search and of the inputs.")]
OptunaStorage = Annotated[
    str | None,
    typer.Option(
        "--optuna-storage",
        metavar="URL",
        help="Also write the run live into this Optuna storage, for optuna-dashboard.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Tune again even if the cache has a result.")]


def tune_workload(
    request: Request, budget: Seconds = None, trials: Trials = None, effort: Effort = None, seed: Seed = 0,
    force: Force = False, regime: RegimeName = DEFAULT_REGIME.value,
    config: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help='Measure this config, "mode=push …" or JSON; store nothing.'),
    ] = None,
    optuna_storage: OptunaStorage = None, db: Database = None, json: Json = False,
) -> None:  # fmt: skip
    """A problem that is already tuned is answered from the cache; the same command continues an interrupted run."""
    from autotune.cli import summary
    from autotune.cli.watch import watching
    from autotune.tuning import EFFORTS, limits_of, tune
    from autotune.tuning.live import live_storage

    if config is not None:
        searching = {
            "--budget": budget, "--trials": trials, "--force": force, "--optuna-storage": optuna_storage,
            "--regime": regime != DEFAULT_REGIME,
        }  # fmt: skip
        refuse(searching, "for a search, and --config measures one config as all regimes call it")
    machine, wanted, workload = session.machine_to_measure_on(), regime_of(regime), request.workload
    chosen, limits = limits_of(machine, effort, trials, budget, seed)
    task = task_here(request, machine)
    written = None if config is None else workload.written(config, task)
    say_where(task)
    if written is not None:
        _evaluate(workload, task, written, iterations=EFFORTS[chosen].iterations, seed=seed, json=json)
        return
    with session.open_store(db) as store:
        with (
            live_storage(optuna_storage) as live,
            session.make_screen(workload, task) as screen, watching(task) as watch,
            closing(session.make_gang(workload, task)) as gang,
        ):  # fmt: skip
            result = tune(
                workload, task, store, gang, screen, budget=limits, effort=EFFORTS[chosen], seed=seed, force=force,
                watch=watch, regime=wanted, live=live,
            )  # fmt: skip
        summary.present(result, request, task.problem, store, db=db, json=json)
    if result.interrupted:
        raise typer.Exit(exit_code())
    if result.entry is None:
        raise typer.Exit(1)


def _evaluate(
    workload: Workload, task: Task[Problem], config: Config, *, iterations: int, seed: int, json: bool
) -> None:
    """Check and measure one config and print its outcome; exit with 1 unless it was measured."""
    from autotune.ranks.evaluation import MeasurePlan, warm_from
    from autotune.tuning.finals import ISOLATED_CALLS

    with closing(session.make_gang(workload, task)) as gang:
        output.say("starting the ranks")
        gang.start()
        warm = warm_from(task.machine)
        plan = MeasurePlan(screen=iterations, iterations=iterations, isolated=ISOLATED_CALLS, warm_from=warm)
        evaluation = gang.evaluate(config, seed, plan)
    latency = evaluation.latency
    if json:
        output.data_json({"config": dict(config), "problem": task.problem.as_dict(), **dataclasses.asdict(evaluation)})
    else:
        lines = [("config", config_text(config)), ("outcome", evaluation.outcome.value)]
        if latency is not None:
            lines.append(("latency", f"{latency_text(latency, Regime.GRAPH)}, skew {microseconds(latency.skew)}"))
            if latency.host is not None:
                lines.append(("host", f"{microseconds(latency.host)} to enqueue a call"))
            if latency.isolated is not None:
                lines.append(("isolated", f"{microseconds(latency.isolated)}, one bound call on an idle GPU"))
            lines.append(("error", f"{evaluation.error:.1e} of the reference's norm"))
        if evaluation.reason:
            lines.append(("reason", evaluation.reason))
        output.data(output.named(lines))
    if latency is None:
        raise typer.Exit(1)


def task_here(request: Request, machine: Machine) -> Task[Problem]:
    """The problem on this machine. Raises MachineTooSmall where that cannot run it."""
    session.check_ranks(request.world_size(machine), machine)
    task = Task(request.problem(machine), machine)
    session.check_work(task)
    return task


def say_where(task: Task[Problem]) -> None:
    """Warn on stderr if there is no GPU."""
    if task.machine.is_interpreter:
        ranks = "1 rank runs" if task.problem.world_size == 1 else f"{task.problem.world_size} ranks run"
        output.say(f"no GPU found: {ranks} under Triton's interpreter; its times say nothing about GPUs")
