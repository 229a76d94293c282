"""The result of a tuning run: as text with the next step, or as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from autotune import tuning
from autotune.cli import card, output
from autotune.cli.options import Request
from autotune.db import Store, TrialRecord, Winner
from autotune.db.values import key_values
from autotune.problem import Problem
from autotune.results.figures import (
    config_text,
    drift_text,
    evaluated,
    outcomes_text,
    regime_options,
    title,
)
from autotune.results.lines import Lines, facts
from autotune.results.order import config_in_order, fields_in_order
from autotune.results.price import price
from autotune.results.result import Result
from autotune.text import counted
from autotune.tuning.finals import PROOF, drift, last_finals, of_search


def present(
    run: tuning.Result, request: Request, problem: Problem, store: Store, *, db: str | None, json: bool,
    note: str = "", steps: Lines | None = None,
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
        steady = "" if run.study.key.is_interpreted else drift_text(drift(records))
        lines = [*_lines(run, searched, failed, store), *(("note", each) for each in (steady, note) if each)]
        if best is None:
            head = output.folded(title(problem.workload, problem.as_dict()), "bold")
            output.styled(*head, *output.named_lines(lines))
        elif best.entry is None:
            card.show(best, [*facts(best), *lines], begin="best so far: ")
        else:
            end = f", from the cache: tuned {best.entry.finished_at:%Y-%m-%d}" if run.from_cache else ""
            card.show(best, [*facts(best), *lines], end=end)
    told = output.named(_next(run, request, [*searched, *failed], db) if steps is None else steps)
    (output.say if json else output.data)(f"\n{told}")


def _best(run: tuning.Result, request: Request) -> Result | None:
    """The winner; the best config so far if the run ended early."""
    if run.entry is not None:
        return Result.of(run.entry, request.workload)
    if run.progress.best is None:
        return None
    return Result(run.study.key, Winner(*run.progress.best, baselines=dict(run.progress.baselines)))


def _lines(run: tuning.Result, searched: list[TrialRecord], failed: list[TrialRecord], store: Store) -> Lines:
    outcomes = Counter(record.evaluation.outcome for record in searched)
    all_tried = f"all {counted(evaluated(outcomes), 'config')} tried: "
    told = outcomes_text(outcomes) if outcomes else "none"
    told = all_tried * (run.progress.exhausted and not run.progress.settled) + told
    if run.entry is not None and run.entry.imported_at is not None:
        told = f"{run.entry.trials}, finals and invalid ones included, where it was tuned; imported"
    if run.progress.spent.trials and not run.study.provenance.replay_of:
        told += f" in {run.progress.spent.total:.0f} s"
    if run.progress.restarts:
        told += f"; ranks restarted {counted(run.progress.restarts, 'time')}"
    lines = [("trials", f"{told}; study {run.study.id} in {store.place}")]
    if run.entry is not None:
        lines += [("price", told)] if (told := price(run.entry, store)) else []
    for record in failed:
        config = config_in_order(run.study.key, record.config)
        lines.append(("failed", f"{record.evaluation.outcome}: {record.evaluation.reason} ({config_text(config)})"))
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


def _next(run: tuning.Result, request: Request, searched: list[TrialRecord], db: str | None) -> Lines:
    if run.interrupted:
        return [("", "Interrupted. All measurements are kept; the same command continues the run.")]
    regime = regime_options(run.study.key.regime)
    again = f"{request.command(db=db)}{regime} --force"
    if run.entry is None:
        failed = next((r.evaluation for r in reversed(searched) if r.evaluation.reason), None)
        why = f" The last one: {failed.outcome}, {failed.reason}" if failed is not None else ""
        return [("", f"No config passed.{why}"), ("Again:", again)]
    paste = f"{request.command('show', db=db)}{regime} --as python"
    return [
        *([("Again:", again)] if run.from_cache else []),
        ("Paste:", f"{paste}  # or command, json"),
        ("Next:", f"{request.command('report', db=db)} --open"),
    ]
