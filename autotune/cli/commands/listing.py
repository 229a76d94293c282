"""``tune list``, ``tune show`` and ``tune lookup``: cache entries, and the config that a program gets."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from autotune.cli import output, session
from autotune.cli.entry_text import entry_dict, entry_lines, entry_title, speedup_text, title
from autotune.cli.options import Database, Json, RegimeName, Request
from autotune.db import CacheKey, Differences, Entry, Provenance, Store
from autotune.errors import NoDatabase
from autotune.outcome import DEFAULT_REGIME, Regime, regime_of
from autotune.report.figures import config_text, dashed, microseconds, problem_text, regime_options
from autotune.report.staleness import why_stale
from autotune.settings import default_database_url
from autotune.workloads import provenance_of, workload


def list_entries(
    of: Annotated[
        str | None, typer.Argument(metavar="WORKLOAD", help="Name or FILE:CLASS; all workloads if left out.")
    ] = None,
    db: Database = None,
    json: Json = False,
) -> None:
    """List all tuned problems, newest first."""
    name = workload(of).name if of is not None else None
    try:
        with Store.open(db, create=False) as store:
            entries = store.entries(name)
    except NoDatabase as error:
        entries = []
        output.say(str(error))
    if json:
        output.data_json([entry_dict(entry) for entry in entries])
    elif entries:
        header = ("workload", "problem", "ranks", "device", "latency", "speedup", "mode", "trials", "tuned")
        output.data(output.columns(header, [_row(entry) for entry in entries]))
        for why, count in Counter(filter(None, map(why_stale, entries))).most_common():
            output.say(f"stale, and not served: {count} of {len(entries)}: {why}")
    else:
        output.say("nothing is tuned yet; next: tune WORKLOAD, see tune --help")


def show() -> None:
    """Show one cache entry in full; on a miss, the fields in which the nearest entry differs."""


def lookup() -> None:
    """Print the config a program would get: exact, nearest or default."""


def show_entry(
    request: Request, regime: RegimeName = DEFAULT_REGIME.value, db: Database = None, json: Json = False
) -> None:
    """On a miss, the nearest entry is shown with the fields in which it differs; exit code 1."""
    machine = session.machine()
    problem = request.problem(machine)
    key, provenance = CacheKey.of(problem, machine, regime_of(regime)), provenance_of(request.workload)
    entry, nearest = _find(key, provenance, db)
    if entry is not None:
        if json:
            output.data_json({"found": True, **entry_dict(entry)})
        else:
            output.data(f"{title(request.workload.name, problem.as_dict())}\n\n{output.named(entry_lines(entry))}")
        return
    differences = nearest.key.differences(key) if nearest else {}
    stale = nearest.provenance.differences(provenance) if nearest else {}
    if json:
        output.data_json(
            {
                "found": False,
                "problem": problem.as_dict(),
                "nearest": entry_dict(nearest) if nearest else None,
                "key_differences": differences,
                "provenance_differences": stale,
            }
        )
    else:
        output.data(f"not in the cache: {problem}")
        if nearest is not None:
            output.data(f"\n{_miss(nearest, differences, provenance)}")
        output.say(f"\nnext: {request.command(db=db)}{regime_options(regime)}")
    raise typer.Exit(1)


def look_up(
    request: Request, regime: RegimeName = DEFAULT_REGIME.value, db: Database = None, json: Json = False
) -> None:
    """The config goes to stdout, its source (exact, nearest or default) to stderr."""
    from autotune.runtime.lookup import lookup

    machine = session.machine()
    problem = request.problem(machine)
    found = lookup(request.workload, problem, machine=machine, url=db or default_database_url(), regime=regime)
    if json:
        output.data_json(
            {
                "config": dict(found.config),
                "source": found.source,
                "reason": found.reason,
                "entry": entry_dict(found.entry) if found.entry else None,
            }
        )
        return
    output.data(found.config.to_json())
    of = f" of {entry_title(found.entry)}" if found.entry is not None and found.source != "exact" else ""
    output.say(f"{found.source}{of}" + (f": {found.reason}" if found.reason else ""))
    if found.source != "exact":
        output.say(f"next: {request.command(db=db)}{regime_options(regime)}")


def _find(key: CacheKey, provenance: Provenance, db: str | None) -> tuple[Entry | None, Entry | None]:
    """The entry itself and the nearest one; neither if there is no database."""
    try:
        with Store.open(db, create=False) as store:
            return store.entry(key, provenance), store.nearest(key)
    except NoDatabase as error:
        output.say(str(error))
        return None, None


def _miss(nearest: Entry, differences: Differences, provenance: Provenance) -> str:
    """The nearest entry and the fields in which it differs."""
    stale = nearest.provenance.differences(provenance)
    rows = [(name, then, now) for name, (then, now) in {**differences, **stale}.items()]
    latency = nearest.winner.latency.of(Regime(nearest.key.regime))
    lines = [
        f"The nearest entry: {entry_title(nearest)}",
        f"  {microseconds(latency)}: {config_text(nearest.winner.config)}",
        "",
        output.columns(("field", "stored", "requested"), rows),
    ]
    if not differences:
        lines.append(f"\nIt is of the same problem and machine but stale: {nearest.provenance.changes(provenance)}.")
    return "\n".join(lines)


def _row(entry: Entry) -> tuple[str, ...]:
    regime = Regime(entry.key.regime)
    return (
        dashed(entry.key.workload),
        problem_text(entry.key.fields) + ("" if entry.key.is_kernel else regime_options(regime)),
        str(entry.key.world_size),
        entry.key.device,
        microseconds(entry.winner.latency.of(regime)),
        speedup_text(entry.winner, regime),
        str(entry.winner.config.get("mode", "")),
        str(entry.trials),
        f"{entry.finished_at:%Y-%m-%d %H:%M}",
    )
