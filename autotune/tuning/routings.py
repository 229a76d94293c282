"""A winner under other routings, or lengths, than those that it is tuned for: right there too, and timed beside a
baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.config import Config
from autotune.db import Routed
from autotune.outcome import Evaluation
from autotune.problem import Problem
from autotune.tuning.evaluator import Evaluator
from autotune.tuning.finals import Evaluate, merge, run_finals
from autotune.workloads import Workload

WAYS = 2
"""Configs that are measured under each routing: the winner, and the fastest baseline."""


def under_other_routings(
    gang: Evaluator, workload: Workload, problem: Problem, winner: Config, baselines: dict[str, Config], rounds: int,
    evaluate: Evaluate, no_time: Callable[[], bool],
) -> dict[str, Routed] | Evaluation:  # fmt: skip
    """The winner and ``baselines`` under each of the problem's other routings, by name; or the evaluation in which the
    winner failed. ``no_time`` is asked before each routing: what is left then is not measured.

    The ranks set each of these problems up as they do in a grid, and in the end the problem itself again.
    """
    found: dict[str, Routed] = {}
    failed: Evaluation | None = None
    for name, other in problem.other_routings().items():
        if failed is not None or no_time():
            break
        turn_to(gang, workload, other)
        routed = in_turns(winner, baselines, rounds, evaluate)
        if isinstance(routed, Evaluation):
            failed = replace(routed, reason=f"with other inputs, {name}: {routed.reason}")
        else:
            found[name] = routed
    turn_to(gang, workload, problem)
    return failed or found


def turn_to(gang: Evaluator, workload: Workload, problem: Problem) -> None:
    """Have the ranks set another problem up. Raises GangError."""
    gang.turn_to(workload, problem)
    gang.start()


def in_turns(winner: Config, baselines: dict[str, Config], rounds: int, evaluate: Evaluate) -> Routed | Evaluation:
    """Check and measure the winner and the baselines in turns; or the evaluation in which the winner failed."""
    failed: dict[Config, Evaluation] = {}

    def turn(config: Config, number: int) -> Evaluation:
        evaluation = evaluate(config, number)
        if evaluation.latency is None:
            failed[config] = evaluation
        return evaluation

    contenders = list(dict.fromkeys([winner, *baselines.values()]))
    measured = run_finals(contenders, rounds, turn, no_time=lambda _: winner in failed, undecided=lambda measured: ())
    if winner in failed:
        return failed[winner]
    return Routed(
        merge(measured[winner]),
        {name: merge(measured[config]) for name, config in baselines.items() if config in measured},
    )
