"""``tune export`` and ``tune import``: tuned configs as a file for other machines, reviewed on the way in."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import output, session
from autotune.cli.entry_filter import EntryFilter
from autotune.cli.options import Database, Json, Output, one_of
from autotune.db import CacheKey, Entry, Provenance
from autotune.errors import InputError, NoDatabase
from autotune.files import text_of
from autotune.outcome import Regime, regime_of
from autotune.results.figures import dashed, microseconds, problem_text
from autotune.results.result import Result
from autotune.text import Table, counted, did_you_mean

if TYPE_CHECKING:
    from autotune.db import Store
    from autotune.sharing import Here, Review

FORMATS = ("json", "vllm", "optuna", "thresholds")
DATABASES = (".db", ".sqlite", ".sqlite3")

Format = Annotated[
    str,
    typer.Option(
        "--format",
        **one_of(FORMATS),
        help="json: configs for tune import; vllm: configs by size, as vLLM keeps them; optuna: studies and trials for "
        "optuna-dashboard; thresholds: the winning mode by size.",
    ),
]
By = Annotated[
    str | None, typer.Option("--by", metavar="FIELD", help="For --format vllm: the size; needed if several vary.")
]
Device = Annotated[str | None, typer.Option("--device", metavar="NAME", help="Only results of this device.")]
InRegime = Annotated[str | None, typer.Option("--regime", **one_of(Regime), help="Only results of this regime.")]


def import_configs(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File written by tune export; - reads stdin.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the database's config where the file has another.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")] = False,
    db: Database = None,
    json: Json = False,
) -> None:
    """Import tuned configs from a file. Nothing stored is lost; exit code 1 if an entry was left out."""
    from autotune.sharing import Here, read, review, take

    try:
        entries = read(_text(file))
    except InputError as error:
        raise InputError(f"{file}: {error}; nothing was imported") from error
    machine = session.machine()
    if dry_run:
        reviews = review(entries, _as_it_is(db), machine, replace=replace)
    else:
        with session.open_store(db) as store:
            reviews = review(entries, Here.of(store), machine, replace=replace)
            take(store, reviews)
    if json:
        output.data_json([_values(number, each) for number, each in enumerate(reviews, 1)])
    elif reviews:
        header = ("entry", "workload", "problem", "device", "latency", "action", "reason")
        output.data(output.columns(Table(header, [_row(number, each) for number, each in enumerate(reviews, 1)])))
    output.say(_summary(reviews, dry_run))
    if any(each.state.is_left_out for each in reviews):
        raise typer.Exit(1)


def export(
    wanted: EntryFilter, format: Format = "json", file: Output = None, device: Device = None, regime: InRegime = None,
    by: By = None, db: Database = None,
) -> None:  # fmt: skip
    """Exports every tuned problem that has the given dimensions; without any, all of them."""
    wanted = dataclasses.replace(wanted, device=device, regime=None if regime is None else regime_of(regime).value)
    if format not in FORMATS:
        raise InputError(f"format {format!r}: allowed: {', '.join(FORMATS)}{did_you_mean(format, FORMATS)}")
    output.check_ending(file, DATABASES if format == "optuna" else (".json",))
    from autotune import sharing

    with session.open_store(db, create=False) as store:
        entries = wanted.entries(store)
        if format == "json":
            output.write(sharing.write(entries), file, counted(len(entries), "config"))
            return
        if format == "optuna":
            _to_optuna(store, entries, file)
            return
        if format == "thresholds":
            current = _current(entries)
            output.write(_thresholds(store, current, wanted), file, "the winning modes")
            _say_left_out(len(entries) - len(current))
            return
        text, left_out = sharing.to_sizes(entries, by)
        output.write(text, file, "configs by size")
        _say_left_out(left_out)


def _current(entries: Sequence[Entry]) -> list[Entry]:
    """Keep the entries of each device and workload that have the newest one's sources, space and versions: where a
    look-up finds that one, it finds no other.
    """
    newest: dict[tuple[str, ...], Provenance] = {}

    def is_current(key: CacheKey, own: Provenance) -> bool:
        return newest.setdefault((key.workload, key.device, key.arch, key.interconnect), own) == own

    return [entry for entry in entries if is_current(entry.key, entry.provenance)]


def _say_left_out(count: int) -> None:
    if count:
        output.say(f"left out, for their other sources, configs or versions: {count}")


def _thresholds(store: Store, entries: Sequence[Entry], wanted: EntryFilter) -> str:
    from autotune.results.crossover import sizes_of, thresholds
    from autotune.results.order import known_workload
    from autotune.results.study import finished

    sized = [each for each in entries if sizes_of(each.key.fields)]
    without = ", ".join(sorted({dashed(each.key.workload) for each in entries if not sizes_of(each.key.fields)}))
    if not sized:
        raise InputError(f"{without}: no field is a size, an integer, by which the mode could change; export as json")
    if without:
        output.say(f"left out, for want of a size by which the mode could change: {without}")
    return thresholds(finished(store, each, wanted.workload or known_workload(each.key)) for each in sized)


def _to_optuna(store: Store, entries: Sequence[Entry], file: Path | None) -> None:
    if file is None:
        raise InputError("an Optuna storage is a file: name it with --output")
    from autotune.sharing.optuna_file import write_optuna

    written = write_optuna(store, entries, file)
    output.say(f"wrote {counted(written, 'trial')} to {file}")
    output.next_step(f"optuna-dashboard sqlite:///{file}")


def _text(file: Path) -> str:
    if str(file) != "-":
        return text_of(file)
    if sys.stdin is None:
        raise InputError("stdin is closed; name a file")
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except OSError as error:
        raise InputError(str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text ({error.reason} at byte {error.start})") from error


def _as_it_is(db: str | None) -> Here:
    """The store's content; no database is made where there is none."""
    from autotune.sharing import Here

    try:
        with session.open_store(db, create=False) as store:
            return Here.of(store)
    except NoDatabase:
        return Here.of(None)


def _values(number: int, review: Review) -> dict[str, Any]:
    told = {"state": review.state.value, "reason": review.reason, "left_out": review.state.is_left_out}
    return {"number": number, **Result.of(review.entry).to_dict(), **told}


def _row(number: int, review: Review) -> tuple[str, ...]:
    of, key = Result.of(review.entry), review.entry.key
    return (
        str(number), dashed(key.workload), problem_text(of.problem), f"{key.world_size} × {key.device}",
        microseconds(of.microseconds), review.state.value, review.reason,
    )  # fmt: skip


def _summary(reviews: Sequence[Review], dry_run: bool) -> str:
    counts = Counter(each.state for each in reviews)
    told = ", ".join(f"{count} {state}" for state, count in counts.items()) or "no entries"
    return f"{told}{'; dry run, nothing changed' if dry_run else ''}"
