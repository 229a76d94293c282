"""``tune fleet``: many hosts tune one list of problems."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import output, session
from autotune.cli.interrupts import exit_code, requested
from autotune.cli.options import Database, Json, database_option, masked, one_of, refuse
from autotune.errors import FleetError, InputError
from autotune.processes.python import with_search_path
from autotune.settings import DATABASE, default_database_url
from autotune.task import Task
from autotune.text import Table, counted

if TYPE_CHECKING:
    from autotune.db import Store
    from autotune.fleet.problem_list import Asked
    from autotune.fleet.worker import Watch
    from autotune.machine import Machine
    from autotune.tuning import Evaluator, Progress, Result
    from autotune.tuning.screening import Screen

ENGINES = ("local", "ray")

HEADER = ("state", "problem", "device", "where, or why")

EXAMINATION_SECONDS = 600.0
"""The doctor compiles a kernel and writes to the disks."""


def fleet(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Problems, as YAML.")],
    engine: Annotated[
        str, typer.Option("--engine", **one_of(ENGINES), help="local: this host. ray: all hosts of a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Head of the Ray cluster; default: the one of this host."),
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Show the list; tune nothing.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Interrupt the list's hosts; measurements are kept.")] = False,
    db: Database = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Tune one list of problems on many hosts: run this on each of them, or once with --engine ray.

    Hosts share a database and never tune a problem twice. The same command resumes. Exit code 1 if a problem is left.
    """
    from autotune.db import Store
    from autotune.fleet import standing
    from autotune.fleet.problem_list import each_once, read_list

    if engine not in ENGINES:
        raise InputError(f"engine {engine!r}: allowed: {', '.join(ENGINES)}")
    if engine != "ray" and address is not None:
        raise InputError("--address is for --engine ray")
    refuse({"--stop": status and stop}, "--status changes nothing")
    asked, url = each_once(read_list(file)), _url(db)
    if not (status or stop):
        try:
            with output.prints_apart():
                if engine == "ray":
                    _on_ray(asked, url, address)
                else:
                    _here(asked, url)
        except KeyboardInterrupt:
            output.say("interrupted; measurements are kept, and the same command resumes")
            raise typer.Exit(exit_code()) from None
    with Store.open(url, create=False) as store:
        rows = standing.rows_of(asked, store)
    if stop:
        with Store.open(url) as store:
            output.say(f"{counted(standing.stop(rows, store), 'problem')} stopped; without --stop the command resumes")
        return
    if as_json:
        output.data_json([row.as_dict() for row in rows])
    else:
        output.data(standing.headline(rows))
        news = [row for row in rows if row.state not in ("done", "waiting")]
        if news:
            cells = [(row.state, standing.title(row.asked), row.device, row.told) for row in news]
            output.data("\n" + output.columns(Table(HEADER, cells)))
    if not status:
        if left := sum(row.state != "done" for row in rows):
            output.say(f"{left} left; the same command goes on with them, and tries failures again")
        else:
            output.next_step(f"tune list{database_option(db)}")
        raise typer.Exit(1 if left else 0)


def _here(asked: Sequence[Asked], url: str) -> None:
    machine = session.machine_to_measure_on()
    mine = [each for each in asked if each.device in (None, machine.device)]
    if not mine:
        raise InputError(f"no problem of the list is for this host's device, {machine.device!r}")
    for each in mine:
        session.check_ranks(each.problem.world_size, machine)
        session.check_work(Task(each.problem, machine))
    work(asked, url, session.ranks_of(machine) or session.MOST_INTERPRETED_RANKS)


def _on_ray(asked: Sequence[Asked], url: str, address: str | None) -> None:
    from autotune.cli.watch import clock_text
    from autotune.db import Store
    from autotune.db.engines import database_url, without_secret
    from autotune.fleet.ray_hosts import Cluster
    from autotune.fleet.standing import headline, rows_of

    if database_url(url).get_backend_name() == "sqlite":
        raise InputError("--engine ray needs a database that every host reaches: --db postgresql://USER@HOST/NAME")
    cluster = Cluster(address)
    widest, needed = max(cluster.gpus().values(), default=0), max(each.problem.world_size for each in asked)
    if needed > widest:
        raise InputError(f"world_size={needed}: the widest host of the Ray cluster has {counted(widest, 'GPU')}")
    begin, told = time.monotonic(), ""
    with Store.open(url) as store:

        def look() -> None:
            nonlocal told
            if (line := headline(rows_of(asked, store))) != told:
                told = line
                output.say(f"[{clock_text(time.monotonic() - begin)}] {line}")

        errors = cluster.run(work, asked, without_secret(url), look=look)  # all users of the cluster see these
        for error in dict.fromkeys(errors):
            output.say(f"tune: warning: {error}")


def work(asked: Sequence[Asked], url: str, gpus: int) -> None:
    """Tune a list as one of the fleet's hosts. Under Ray messages go to its log of the worker."""
    from autotune.db import Store
    from autotune.fleet.worker import Worker

    machine, name = session.machine_to_measure_on(), socket.gethostname()
    output.say(f"{name}: examining {gpus} × {machine.device}")
    examine(name, url)
    with Store.open(url) as store, closing(Ranks(machine, asked)) as ranks:
        tell, tune = (lambda line: output.say(f"{name}: {line}")), partial(_tune, machine, store, ranks)
        Worker(store, machine, asked, tune, tell, gpus).run()


class Ranks:
    """A host's ranks and compilers, which stay from one problem to the next of its workload and width: to verify a size
    takes less time than to start them.
    """

    def __init__(self, machine: Machine, asked: Sequence[Asked]) -> None:
        self._machine, self._asked = machine, asked
        self._opened = ExitStack()
        self._kind: tuple[Any, int] | None = None

    def of(self, asked: Asked) -> tuple[Evaluator, Screen]:
        """The ranks and compilers, turned to this problem."""
        task, kind = Task(asked.problem, self._machine), self._kind_of(asked)
        if kind != self._kind:
            self.close()
            heap = max(each.workload.heap_bytes(each.problem) for each in self._asked if self._kind_of(each) == kind)
            self._screen = self._opened.enter_context(session.make_screen(asked.workload, task))
            self._gang = self._opened.enter_context(closing(session.make_gang(asked.workload, task, heap)))
            self._kind = kind
        else:
            self._gang.turn_to(asked.workload, asked.problem)
            self._screen.turn_to(asked.workload, asked.problem)
        return self._gang, self._screen

    def close(self) -> None:
        self._kind = None
        self._opened.close()

    @staticmethod
    def _kind_of(asked: Asked) -> tuple[Any, int]:
        return asked.workload, asked.problem.world_size


def examine(name: str, url: str) -> None:
    """Raise FleetError for a host with something broken. Tests replace this function.

    ``tune doctor`` is a process of its own, which leaves no context on the GPUs behind.
    """
    command = [sys.executable, "-P", "-m", "autotune.cli", "doctor", "--json"]
    environment = with_search_path({**os.environ, DATABASE.name: url})
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=EXAMINATION_SECONDS)
        findings = json.loads(done.stdout)["findings"]
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise FleetError(f"{name} cannot be examined; run tune doctor there") from error
    if broken := [f"{each['check']}: {each['found']}" for each in findings if each["verdict"] == "broken"]:
        raise FleetError(f"{name} is not used: {'; '.join(broken)}; run tune doctor there")


def _tune(machine: Machine, store: Store, ranks: Ranks, asked: Asked, begun: Watch) -> Result:
    """Tune one problem; ``begun`` hears of its progress, and may raise: the ranks end then."""
    from autotune.cli.watch import watching
    from autotune.tuning import EFFORTS, limits_of, tune

    workload, problem, options = asked.workload, asked.problem, dict(asked.options)
    seed = options.get("seed", 0)
    effort, limits = limits_of(machine, options.get("effort"), options.get("trials"), options.get("budget"), seed)
    task = Task(problem, machine)
    session.check_work(task)
    with watching(task) as view:

        def watch(progress: Progress) -> None:
            begun(progress)
            view(progress)

        try:
            gang, screen = ranks.of(asked)
            return tune(
                workload, task, store, gang, screen, budget=limits, seed=seed, watch=watch,
                effort=EFFORTS[effort if asked.search else "quick"], regime=asked.regime, search=asked.search,
            )  # fmt: skip
        except Exception as error:  # whatever it is: the ranks may be in the midst of a request
            ranks.close()
            if requested():  # a library may have made it of an interrupt
                raise KeyboardInterrupt from error
            raise


def _url(db: str | None) -> str:
    """The database's URL; one with a password is refused on the command line, which all users of a host can read."""
    from autotune.db.engines import has_secret

    if db is not None and has_secret(db):
        raise InputError(
            f"--db {masked(db)}: a password on a command line is seen by every user of this host; leave it out, and "
            "set PGPASSFILE, PGPASSWORD or PGSERVICE on every host"
        )
    return db or default_database_url()
