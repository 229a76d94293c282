"""The result of a tuning run: as text with the next step, or as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from autotune import tuning
from autotune.cli import output
from autotune.cli.options import Request
from autotune.db import Store, TrialRecord, Winner
from autotune.db.values import key_values
from autotune.problem import Problem
from autotune.results.figures import (
    INTERPRETER_NOTE,
    config_text,
    device_text,
    drift_text,
    evaluated,
    outcomes_text,
    regime_options,
    title,
)
from autotune.results.lines import copy_lines, winner_lines
from autotune.results.order import config_in_order, fields_in_order
from autotune.results.result import Result
from autotune.text import counted
from autotune.tuning.finals import PROOF, drift, last_finals, of_search
from autotune.tuning.progress import Spent


def present(
    run: tuning.Result, request: Request, problem: Problem, store: Store, *, db: str | None, json: bool,
    note: str = "", steps: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Print the result with a ``note`` on it. Next steps, by default the usual ones, go to stderr beside JSON."""
    records = store.trials(run.study.id)
    searched = of_search(records)
    afterwards = [*last_finals(records), *(record for record in records if record.source == PROOF)]
    failed = [record for record in afterwards if record.evaluation.latency is None]
    best = _best(run, request)
    if json:
        output.data_json({**_values(run, best, searched, failed, store), "drift": drift(records)})
    else:
        machine = INTERPRETER_NOTE if run.study.key.is_interpreted else drift_text(drift(records))
        lines = [*_lines(run, best, searched, failed, store), *(("note", each) for each in (machine, note) if each)]
        origin = " (from the cache)" if run.from_cache else ""
        output.data(f"{title(problem.workload, problem.as_dict())}{origin}\n\n{output.named(lines)}")
    tell = output.say if json else output.data
    for line in _next(run, request, [*searched, *failed], db) if steps is None else steps:
        tell(line)


def spent_text(spent: Spent) -> str:
    """``41.2 s, 312 trials/min; evaluating 88 % of the time (measuring 52 %), waiting for compilers 3 %``."""
    shares = (f"{100 * part / spent.total:.0f} %" for part in (spent.evaluating, spent.measuring, spent.compilers))
    evaluating, measuring, waiting = shares
    rate = f"{spent.total:.1f} s, {spent.rate:.0f} trials/min"
    return f"{rate}; evaluating {evaluating} of the time (measuring {measuring}), waiting for compilers {waiting}"


def _best(run: tuning.Result, request: Request) -> Result | None:
    """The winner; the best config so far if the run ended early."""
    if run.entry is not None:
        return Result.of(run.entry, request.workload)
    if run.progress.best is None:
        return None
    return Result(run.study.key, Winner(*run.progress.best, baselines=dict(run.progress.baselines)))


def _lines(
    run: tuning.Result, best: Result | None, searched: list[TrialRecord], failed: list[TrialRecord], store: Store
) -> list[tuple[str, str]]:
    lines = [("device", device_text(run.study.key))]
    if best is not None:
        lines += winner_lines(best, "winner" if best.entry is not None else "best so far")
    outcomes = Counter(record.evaluation.outcome for record in searched)
    restarts = run.progress.restarts
    again = f"; ranks restarted {counted(restarts, 'time')}" if restarts else ""
    tried = f"{evaluated(outcomes)}: {outcomes_text(outcomes)}" if outcomes else "none"
    if run.entry is not None and run.entry.imported_at is not None:
        tried = f"{run.entry.trials}, finals and invalid ones included, where it was tuned; imported"
    lines.append(("trials", tried + again))
    for i, record in enumerate(failed):
        config = config_in_order(run.study.key, record.config)
        told = f"{record.evaluation.outcome}: {record.evaluation.reason} ({config_text(config)})"
        lines.append(("" if i else "failed in finals", told))
    if run.progress.spent.trials and not run.study.provenance.replay_of:
        lines.append(("search", spent_text(run.progress.spent)))
    if best is not None and best.entry is not None:
        when = f"tuned {best.entry.finished_at:%Y-%m-%d %H:%M} UTC"
        lines += [("stored", f"{store.place} (study {run.study.id}, {when})"), *copy_lines(best)]
    return lines


def _values(
    run: tuning.Result, best: Result | None, searched: list[TrialRecord], failed: list[TrialRecord], store: Store
) -> dict[str, Any]:
    key = run.study.key
    nothing = {**key_values(key), "problem": fields_in_order(key), "config": None, "latency": None}
    outcomes = Counter(record.evaluation.outcome for record in searched)
    return {
        **(best.to_dict() if best is not None else nothing),
        "study": run.study.id,
        "finished": run.entry is not None,
        "from_cache": run.from_cache,
        "interrupted": run.interrupted,
        "evaluated": evaluated(outcomes),
        "outcomes": {outcome.value: count for outcome, count in outcomes.items()},
        "out_in_the_finals": [
            {"config": dict(record.config), "outcome": record.evaluation.outcome, "reason": record.evaluation.reason}
            for record in failed
        ],
        "resumed": run.progress.resumed,
        "restarts": run.progress.restarts,
        "spent": {**dataclasses.asdict(run.progress.spent), "trials_a_minute": run.progress.spent.rate},
        "seed": run.study.seed,
        "database": store.place,
    }


def _next(run: tuning.Result, request: Request, searched: list[TrialRecord], db: str | None) -> list[str]:
    """The next steps; the last line is a command."""
    if run.interrupted:
        return ["", "Interrupted. All measurements are kept; the same command continues the run."]
    regime = run.study.key.regime
    again = f"Tune again: {request.command(db=db)}{regime_options(regime)} --force"
    if run.entry is None:
        failed = next((r.evaluation for r in reversed(searched) if r.evaluation.reason), None)
        why = f" The last one: {failed.outcome}, {failed.reason}" if failed is not None else ""
        return ["", f"No config could be measured.{why}", again]
    name = request.word if request.is_of_a_file else request.workload.name
    named = f', regime="{regime}"' if regime_options(regime) else ""
    lines = ["", f'In Python:  autotune.lookup("{name}", problem{named}).config']
    return [*lines, *([again] if run.from_cache else []), f"Next:       {request.command('report', db=db)}"]
