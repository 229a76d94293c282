"""The result of a tuning run: as text with the next step, or as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.cli import output
from autotune.cli.entry_text import copy_lines, entry_dict, title, winner_dict, winner_lines
from autotune.cli.options import Request
from autotune.db import Store, TrialRecord, Winner
from autotune.outcome import Outcome, Regime
from autotune.problem import Problem
from autotune.results.figures import (
    INTERPRETER_NOTE,
    config_text,
    device_text,
    drift_text,
    evaluated,
    outcomes_text,
    regime_options,
)
from autotune.results.order import config_in_order, fields_in_order
from autotune.text import counted
from autotune.tuning import Result
from autotune.tuning.finals import PROOF, drift, last_finals, of_search
from autotune.tuning.progress import Spent
from autotune.workloads import Workload


def present(
    result: Result, request: Request, problem: Problem, store: Store, *, db: str | None, json: bool,
    note: str = "", steps: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Print the result with a ``note`` on it. Next steps, by default the usual ones, go to stderr beside JSON."""
    records = store.trials(result.study.id)
    searched = of_search(records)
    afterwards = [*last_finals(records), *(record for record in records if record.source == PROOF)]
    failed = [record for record in afterwards if record.evaluation.latency is None]
    drifted = drift(records)
    if json:
        output.data_json({**_values(result, searched, failed, store), "drift": drifted})
    else:
        machine = INTERPRETER_NOTE if result.study.key.is_interpreted else drift_text(drifted)
        notes = [each for each in (machine, note) if each]
        output.data(_text(result, request.workload, problem.as_dict(), searched, failed, store, notes))
    tell = output.say if json else output.data
    for line in _next(result, request, [*searched, *failed], db) if steps is None else steps:
        tell(line)


def spent_text(spent: Spent) -> str:
    """``41.2 s, 312 trials/min; evaluating 88 % of the time (measuring 52 %), waiting for compilers 3 %``."""
    shares = (f"{100 * part / spent.total:.0f} %" for part in (spent.evaluating, spent.measuring, spent.compilers))
    evaluated, measured, waited = shares
    rate = f"{spent.total:.1f} s, {spent.rate:.0f} trials/min"
    return f"{rate}; evaluating {evaluated} of the time (measuring {measured}), waiting for compilers {waited}"


def _best(result: Result) -> Winner | None:
    """The winner; the best config so far if the run ended early."""
    if result.entry is not None:
        return result.entry.winner
    if result.progress.best is None:
        return None
    config, latency = result.progress.best
    return Winner(config, latency, baselines=dict(result.progress.baselines))


def _text(
    result: Result, workload: Workload, problem: Mapping[str, Any], searched: list[TrialRecord],
    failed: list[TrialRecord], store: Store, notes: list[str],
) -> str:  # fmt: skip
    key, best = result.study.key, _best(result)
    lines = [("device", device_text(key))]
    if best is not None:
        name = "winner" if result.entry is not None else "best so far"
        lines += winner_lines(key, best, name)
    outcomes = _outcomes(searched)
    restarts = result.progress.restarts
    again = f"; ranks restarted {counted(restarts, 'time')}" if restarts else ""
    tried = f"{evaluated(outcomes)}: {outcomes_text(outcomes)}" if outcomes else "none"
    if result.entry is not None and result.entry.imported_at is not None:
        tried = f"{result.entry.trials}, finals and invalid ones included, where it was tuned; imported"
    lines.append(("trials", tried + again))
    for i, record in enumerate(failed):
        config = config_in_order(key, record.config)
        told = f"{record.evaluation.outcome}: {record.evaluation.reason} ({config_text(config)})"
        lines.append(("" if i else "failed in finals", told))
    if result.progress.spent.trials and not result.study.provenance.replay_of:
        lines.append(("search", spent_text(result.progress.spent)))
    if result.entry is not None:
        when = f"tuned {result.entry.finished_at:%Y-%m-%d %H:%M} UTC"
        lines.append(("stored", f"{store.place} (study {result.study.id}, {when})"))
        lines += copy_lines(result.entry, workload)
    lines += [("note", each) for each in notes]
    origin = " (from the cache)" if result.from_cache else ""
    return f"{title(key.workload, problem)}{origin}\n\n{output.named(lines)}"


def _values(result: Result, searched: list[TrialRecord], failed: list[TrialRecord], store: Store) -> dict[str, Any]:
    key, best = result.study.key, _best(result)
    if result.entry is not None:
        values = entry_dict(result.entry)
    else:
        found: dict[str, Any] = {"config": None, "latency": None}
        if best is not None:
            found = winner_dict(best, Regime(key.regime))
        values = {**dataclasses.asdict(key), "problem": fields_in_order(key), **found, "study": result.study.id}
    return {
        **values,
        "finished": result.entry is not None,
        "from_cache": result.from_cache,
        "interrupted": result.interrupted,
        "evaluated": evaluated(_outcomes(searched)),
        "outcomes": {outcome.value: count for outcome, count in _outcomes(searched).items()},
        "out_in_the_finals": [
            {"config": dict(record.config), "outcome": record.evaluation.outcome, "reason": record.evaluation.reason}
            for record in failed
        ],
        "resumed": result.progress.resumed,
        "restarts": result.progress.restarts,
        "spent": {**dataclasses.asdict(result.progress.spent), "trials_a_minute": result.progress.spent.rate},
        "seed": result.study.seed,
        "database": store.place,
    }


def _next(result: Result, request: Request, searched: list[TrialRecord], db: str | None) -> list[str]:
    """The next steps; the last line is a command."""
    if result.interrupted:
        return ["", "Interrupted. All measurements are kept; the same command continues the run."]
    again = f"Tune again: {request.command(db=db)}{regime_options(result.study.key.regime)} --force"
    if result.entry is None:
        failed = next((r.evaluation for r in reversed(searched) if r.evaluation.reason), None)
        why = f" The last one: {failed.outcome}, {failed.reason}" if failed is not None else ""
        return ["", f"No config could be measured.{why}", again]
    name = request.word if request.is_of_a_file else request.workload.name
    regime = result.study.key.regime
    named = f', regime="{regime}"' if regime_options(regime) else ""
    lines = ["", f'In Python:  autotune.lookup("{name}", problem{named}).config']
    if result.from_cache:
        lines.append(again)
    return [*lines, f"Next:       {request.command('report', db=db)}"]


def _outcomes(searched: list[TrialRecord]) -> Counter[Outcome]:
    return Counter(record.evaluation.outcome for record in searched)
