"""Runs written into an Optuna storage as they go: there optuna-dashboard follows them, beside other studies."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from autotune.db import StudyRecord, TrialRecord, Winner
from autotune.errors import StoreError
from autotune.outcome import Outcome, Regime
from autotune.search_spaces import Space
from autotune.text import visible
from autotune.tuning.finals import FINAL

LOG = logging.getLogger("autotune")

LOCKED_SECONDS = 30
CONNECT_SECONDS = 10

LAST_SECONDS = 30.0
"""Time for what is still to be written when a command ends."""

LONGEST_NAME = 512
"""Characters that Optuna keeps of a study's name."""

MOST_TEXT = 2000
"""Characters that MySQL keeps of an attribute."""

ALLOWED = "allowed: sqlite:///FILE, postgresql+psycopg://USER@HOST/NAME, and what else Optuna takes"

REFUSED = (Outcome.INVALID, Outcome.DID_NOT_COMPILE, Outcome.OUT_OF_RESOURCES)
"""Outcomes of configs that were never run: Optuna's PRUNED. Those that failed when they ran are FAIL."""


class DirectStorage:
    """An open Optuna storage that is written at once; what goes wrong is raised as StoreError."""

    def __init__(self, storage: RDBStorage, place: str) -> None:
        self._storage, self._place = storage, place

    def study(self, study: StudyRecord, space: Space, history: Iterable[TrialRecord]) -> LiveStudy:
        """A study of the storage's for one of ours; of its ``history``, what the storage lacks is added."""
        return LiveStudy(self, study, space, list(history))

    def close(self) -> None:
        self._storage.engine.dispose()

    def open_study(self, name: str) -> optuna.Study:
        """The storage's study of that name, made where there is none."""
        study = optuna.create_study(storage=self._storage, study_name=name, load_if_exists=True)
        # Past the warning that it is experimental: Python's filters belong to the process, and this is a thread.
        inspect.unwrap(optuna.Study.set_metric_names)(study, ["latency, µs"])
        return study

    def put(self, job: Callable[[], None]) -> None:
        try:
            job()
        except (SQLAlchemyError, OptunaError) as error:
            raise StoreError(f"Optuna storage {self._place}: {_first_line(error)}") from error


class LiveStorage(DirectStorage):
    """An open Optuna storage, and the thread that writes into it.

    What is tuned waits for no storage and depends on none: where one fails, a warning says so, once, and the run goes
    on without it.
    """

    def __init__(self, storage: RDBStorage, place: str) -> None:
        super().__init__(storage, place)
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._failed = False
        self._writer = threading.Thread(target=self._write, name="optuna-storage", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Write what is left to be written, if that does not take too long."""
        self._jobs.put(None)
        self._writer.join(LAST_SECONDS)
        if self._writer.is_alive():
            self._give_up(f"did not take everything within {LAST_SECONDS:.0f} s")
        else:
            super().close()

    def put(self, job: Callable[[], None]) -> None:
        """Have something written, in its turn."""
        self._jobs.put(job)

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._failed:
                continue
            try:
                job()
            except Exception as error:  # noqa: BLE001  whatever a storage and its driver raise, tuning goes on
                self._give_up(_first_line(error))

    def _give_up(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            LOG.warning("Optuna storage %s: %s; the run goes on without it", self._place, visible(why))


class LiveStudy:
    """One of our studies in an Optuna storage: trials as they end, the winner among the study's attributes."""

    _study: optuna.Study
    """Set by the first of the jobs."""

    def __init__(self, storage: DirectStorage, study: StudyRecord, space: Space, history: list[TrialRecord]) -> None:
        """Make the study, or find what an interrupted run has left. What the finals measured anew is left out: it does
        not compare with the search.
        """
        self._storage, self._record, self._dimensions = storage, study, space.dimensions
        self._categories: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(dimension.values) for name, dimension in space.dimensions.items()
        }
        self._regime = Regime(study.key.regime)
        self._storage.put(lambda: self._begin(history))

    def add(self, trial: TrialRecord) -> None:
        """A trial of the search, or a failed proof, that has ended."""
        ended = datetime.now()
        self._storage.put(lambda: self._study.add_trial(self._frozen(trial, ended)))

    def finish(self, winner: Winner) -> None:
        def write() -> None:
            values = {"winner": dict(winner.config), "winner, µs": winner.latency.of(self._regime)}
            baselines = {f"{name}, µs": latency.of(self._regime) for name, latency in winner.baselines.items()}
            for name, value in (values | baselines).items():
                self._study.set_user_attr(name, value)

        self._storage.put(write)

    def _begin(self, history: list[TrialRecord]) -> None:
        self._study = self._storage.open_study(study_name(self._record))
        trials = self._study.get_trials(deepcopy=False)
        for trial in trials:
            self._categories |= trial.distributions  # Optuna takes no others; an export knows those that occur alone
        there = {(trial.user_attrs.get("source"), frozenset(trial.params.items())) for trial in trials}
        if not there:
            for name, value in dataclasses.asdict(self._record.key).items():
                self._study.set_user_attr(name, value)
        for record in history:
            frozen = self._frozen(record, record.created_at or datetime.now())
            if record.source != FINAL and (record.source, frozenset(frozen.params.items())) not in there:
                self._study.add_trial(frozen)

    def _frozen(self, record: TrialRecord, ended: datetime) -> FrozenTrial:
        """An Optuna trial: categories as parameters, microseconds as value, the rest as attributes."""
        evaluation = record.evaluation
        value = evaluation.latency.of(self._regime) if evaluation.latency is not None else None
        state = TrialState.PRUNED if evaluation.outcome in REFUSED else TrialState.FAIL
        dimensions = self._dimensions
        names = [n for n, v in record.config.items() if n in dimensions and dimensions[n].holds(v)]
        trial = create_trial(
            state=TrialState.COMPLETE if value is not None else state,
            value=value,
            params={name: record.config[name] for name in names},
            distributions={name: self._categories[name] for name in names},
            user_attrs=_attributes(record),
        )
        trial.datetime_complete = ended.astimezone().replace(tzinfo=None)
        phases = evaluation.seconds
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=phases.get("total", sum(phases.values())))
        return trial


@contextmanager
def live_storage(url: str | None) -> Iterator[LiveStorage | None]:
    """The Optuna storage of a URL, None where there is none; raises StoreError for one that cannot be opened."""
    if url is None:
        yield None
        return
    with closing(LiveStorage(*_opened(url))) as live:
        yield live


@contextmanager
def direct_storage(url: str) -> Iterator[DirectStorage]:
    """The Optuna storage of a URL, written at once; raises StoreError.

    A file is not forced onto the disk after each of thousands of commits: it can be written again.
    """
    opened, place = _opened(url)
    if opened.engine.dialect.name == "sqlite":
        event.listen(opened.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
        opened.engine.dispose()  # of connections from before
    with closing(DirectStorage(opened, place)) as storage:
        yield storage


def _opened(url: str) -> tuple[RDBStorage, str]:
    """The storage, and its place without a password."""
    target = _checked(url)
    place = str(target)
    # No wait for a file or a server lasts for ever.
    waits = {"sqlite": {"timeout": LOCKED_SECONDS}, "postgresql": {"connect_timeout": CONNECT_SECONDS}}
    options = {"connect_args": waits.get(target.get_backend_name(), {})}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        return RDBStorage(target.render_as_string(hide_password=False), engine_kwargs=options), place
    except (SQLAlchemyError, OptunaError, ImportError, RuntimeError, ValueError, OSError) as error:
        raise StoreError(f"Optuna storage {place}: {_first_line(error)}; {ALLOWED}") from error


def study_name(study: StudyRecord) -> str:
    """The name of a study of ours in a storage where studies of many databases may lie."""
    key, began = study.key, study.created_at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    fields = " ".join(f"{name}={value}" for name, value in json.loads(key.problem).items() if name != "world_size")
    return f"{key.workload} {fields} on {key.world_size} × {key.device}, {key.regime}, {began}"[:LONGEST_NAME]


def _checked(url: str) -> URL:
    try:
        target = make_url(url)
    except (ArgumentError, ValueError) as error:  # the text may hold a password
        raise StoreError(f"Optuna storage {url.partition('://')[0]}: not a URL; {ALLOWED}") from error
    if target.get_backend_name() == "sqlite" and target.database in (None, "", ":memory:"):
        raise StoreError(f"Optuna storage {url}: nobody could follow it; name a file: sqlite:///FILE")
    return target.set(drivername="postgresql+psycopg") if target.drivername == "postgresql" else target


def _attributes(record: TrialRecord) -> dict[str, Any]:
    evaluation, latency = record.evaluation, record.evaluation.latency
    found: dict[str, Any] = {
        "mode": record.config.get("mode"), "outcome": evaluation.outcome.value, "source": record.source,
        "reason": visible(evaluation.reason)[:MOST_TEXT], "predicted, µs": record.predicted,
    }  # fmt: skip
    if latency is not None:
        found |= {"device, µs": latency.median, "host, µs": latency.host, "isolated, µs": latency.isolated,
                  "skew, µs": latency.skew}  # fmt: skip
    return {name: value for name, value in found.items() if value not in (None, "")}


def _first_line(error: Exception) -> str:
    """The driver's words, without the statement that SQLAlchemy repeats."""
    cause = error.__cause__ if isinstance(error, OptunaError) and error.__cause__ is not None else error
    return str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0] or type(cause).__name__
