"""``tune fleet``: many hosts tune one list of problems; its status, and stopping it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import output, session
from autotune.cli.interrupts import exit_code
from autotune.cli.options import Database, Json, database_option, masked
from autotune.errors import InputError
from autotune.settings import default_database_url
from autotune.text import counted

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

    from autotune.db import CacheKey, Provenance, Store
    from autotune.db.fleet import Fleet
    from autotune.db.fleet_records import Counts, HostRecord, Wanted
    from autotune.fleet.engine import Engine

ENGINES = ("local", "ray")

WATCH_SECONDS = 1.0

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="Problems, as YAML; without it, those in the database.")
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", metavar="|".join(ENGINES), help="local: this host, one problem at a time. ray: a Ray cluster."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="Head of the Ray cluster; default: the one of this host."),
]
Exclusive = Annotated[bool, typer.Option("--exclusive", help="Ray: give each problem a host to itself.")]
Retry = Annotated[bool, typer.Option("--retry", help="Try again what was set aside: problems and hosts.")]


def fleet() -> None:
    """Tune one list of problems on many hosts: tune fleet FILE. The list is in the database.

    The same command resumes; several commands, on one host or on many, share a list and never tune a problem twice.
    """


def start(
    file: File = None, engine: EngineName = "local", address: Address = None, exclusive: Exclusive = False,
    retry: Retry = False, db: Database = None,
) -> None:  # fmt: skip
    """Put a file's problems on the list, and tune what is on it; tune fleet FILE is short for this.

    Exit code 1 if a problem was set aside or is left.
    """
    from autotune.db import Store
    from autotune.fleet.driver import drive
    from autotune.fleet.problem_list import read_list
    from autotune.fleet.wanting import wanted_by

    if engine not in ENGINES:
        raise InputError(f"engine {engine!r}: allowed: {', '.join(ENGINES)}")
    if engine != "ray" and (address is not None or exclusive):
        raise InputError("--address and --exclusive are for --engine ray")
    asked = read_list(file) if file is not None else []
    url = _url(db)
    if file is None:
        Store.open(url, create=False).close()  # a mistyped one is not made: its list would be empty, and all of it done
    with Store.open(url) as store:
        output.say("examining the hosts")
        works = make_engine(engine, url, address, exclusive)
        try:
            if retry:
                store.fleet.forgive()
            hosts = [store.fleet.register(host) for host in works.hosts()]
            _tell_of(hosts, getattr(works, "troubles", {}))
            wanted = wanted_by(asked, hosts)
            _check_work(wanted)
            new = store.fleet.add(wanted, done=_done(store) if wanted else ())
            output.say(f"{counted(len(wanted), 'problem')}, {new} of them new")
            store.fleet.resume()
            with _watching(store.fleet) as watch:
                drive(store.fleet, works, watch)
        except KeyboardInterrupt:
            output.say("interrupted; measurements are kept, and the same command resumes")
            raise typer.Exit(exit_code()) from None
        finally:
            works.close()
        _finish(store.fleet, db)


def status(db: Database = None, json: Json = False) -> None:
    """Show the list: counts, time left, what is running where, failures and hosts."""
    from autotune.cli.fleet_view import fleet_dict, fleet_text
    from autotune.db import Store

    with Store.open(_url(db), create=False) as store:
        snapshot = store.fleet.snapshot()
    if json:
        output.data_json(fleet_dict(snapshot))
    else:
        _console(sys.stdout).print(fleet_text(snapshot))


def watch(db: Database = None) -> None:
    """Follow the list in a live table until Ctrl-C or until nothing is left; in a pipe, a line per event.

    A list that is still empty is waited for. The list as it ends is printed on stdout, as by tune fleet status.
    """
    from autotune.cli.fleet_view import fleet_text
    from autotune.db import Store

    with Store.open(_url(db), create=False) as store:
        if store.fleet.is_empty:
            output.say(f"waiting for a list in {store.place}; Ctrl-C ends")
        with _watching(store.fleet) as look:
            while store.fleet.is_empty or _is_open(store.fleet.counts()):
                look()
                time.sleep(WATCH_SECONDS)
        _console(sys.stdout).print(fleet_text(store.fleet.snapshot()))


def _is_open(counts: Counts) -> bool:
    return bool(counts.wanted + counts.running + counts.stopping)


def stop(db: Database = None) -> None:
    """Interrupt what is running and hand out nothing more; measurements are kept, tune fleet resumes."""
    from autotune.db import Store

    url = _url(db)
    Store.open(url, create=False).close()  # a mistyped one is not made: the fleet would go on
    with Store.open(url) as store:
        store.fleet.stop()
        counts = store.fleet.counts()
    output.say(f"{counts.stopped} stopped, {counts.stopping} stopping; next: tune fleet resumes")


def make_engine(name: str, url: str, address: str | None, exclusive: bool) -> Engine:
    """The engine, with its hosts examined. Tests replace this function."""
    if name == "local":
        from autotune.fleet.local import LocalEngine

        return LocalEngine(url)
    from autotune.db.engines import database_url, without_secret
    from autotune.fleet.ray_engine import RayEngine

    if database_url(url).get_backend_name() == "sqlite":
        raise InputError("--engine ray needs a database that every host reaches: --db postgresql://USER@HOST/NAME")
    return RayEngine(without_secret(url), address, exclusive=exclusive)


def _url(db: str | None) -> str:
    """The database's URL; one with a password is refused on the command line, which all users of a host can read."""
    from autotune.db.engines import has_secret

    if db is not None and has_secret(db):
        raise InputError(
            f"--db {masked(db)}: a password on a command line is seen by every user of this host; leave it out, and "
            "set PGPASSFILE, PGPASSWORD or PGSERVICE on every host"
        )
    return db or default_database_url()


def _tell_of(hosts: list[HostRecord], troubles: dict[str, str]) -> None:
    for name, why in troubles.items():
        output.say(f"tune: warning: {name}: {why}")
    for host in hosts:
        why = host.broken or host.set_aside
        output.say(f"{host.name}: {host.gpus} × {host.kind}" + (f"; not used: {why}" if why else ""))


def _check_work(wanted: list[Wanted]) -> None:
    """Refuse what would take the interpreter hours."""
    import json

    from autotune.machine import INTERPRETED, INTERPRETER
    from autotune.workloads import workload

    for each in wanted:
        if each.key.device == INTERPRETER:
            kind = workload(each.key.workload).problem_type
            session.check_work(kind.from_dict(json.loads(each.key.problem)), INTERPRETED)


def _done(store: Store) -> set[tuple[CacheKey, Provenance]]:
    """The problems that the cache has already."""
    return {(entry.key, entry.provenance) for entry in store.entries()}


@contextmanager
def _watching(fleet: Fleet) -> Iterator[Callable[[], None]]:
    """Yields what to call after each look at the database: a live table on a terminal, else lines."""
    from rich.live import Live

    from autotune.cli.fleet_view import fleet_text
    from autotune.cli.watch import Narrow, clock_text
    from autotune.fleet.log import Log

    console, begin = _console(sys.stderr), time.monotonic()
    if not console.is_terminal:
        log = Log(fleet)

        def tell() -> None:
            for line in log.lines():
                output.say(f"[{clock_text(time.monotonic() - begin)}] {line}")

        yield tell
        tell()
        return
    shown_at = 0.0
    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def show() -> None:
            nonlocal shown_at
            if time.monotonic() >= shown_at + WATCH_SECONDS:
                shown_at = time.monotonic()
                live.update(Narrow(fleet_text(fleet.snapshot())))

        yield show


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False)


def _finish(fleet: Fleet, db: str | None) -> None:
    from autotune.cli.fleet_view import fleet_text, headline

    snapshot = fleet.snapshot()
    if snapshot.unlucky:
        _console(sys.stdout).print(fleet_text(snapshot))
    else:
        output.data(headline(snapshot))
    counts = snapshot.counts
    if counts.done == counts.total:
        output.say(f"next: tune list{database_option(db)}")
        return
    left = counts.wanted + counts.stopped
    if left:
        output.say(f"{left} left: stopped, or waiting for another host; the same command goes on with them")
    if counts.failed:
        output.say(f"{counts.failed} set aside; tune fleet --retry … tries them again")
    raise typer.Exit(1)
