"""``tune WORKLOAD --config``: check and measure one config written by hand; store nothing."""

from __future__ import annotations

import dataclasses
from contextlib import closing

import typer

from autotune.cli import output, session
from autotune.config import Config
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.results.figures import config_text, latency_text, microseconds
from autotune.task import Task
from autotune.tuning import Effort
from autotune.workloads import Workload


def evaluate(workload: Workload, task: Task[Problem], config: Config, *, effort: Effort, seed: int, json: bool) -> None:
    """Run one config and print its outcome; exit with 1 unless it was measured."""
    from autotune.ranks.evaluation import MeasurePlan, warm_from
    from autotune.tuning.finals import ISOLATED_CALLS

    with closing(session.make_gang(workload, task)) as gang:
        output.say("starting the ranks")
        gang.start()
        count, warm = effort.iterations, warm_from(task.machine)
        plan = MeasurePlan(screen=count, iterations=count, isolated=ISOLATED_CALLS, warm_from=warm)
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
