"""The look-up: the config for a problem here, and its source. It never tunes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from autotune.config import Config
from autotune.db import CacheKey, Entry
from autotune.db.records import fields_text
from autotune.errors import InputError, InvalidProblem
from autotune.forks import FORKS_WAIT
from autotune.machine import Machine, versions
from autotune.machine import machine as this_machine
from autotune.outcome import DEFAULT_REGIME, Latency, Regime, regime_of
from autotune.problem import Problem
from autotune.runtime.entries import LOCK, Entries, Measured, Served, forget_entries, read_entries, serve
from autotune.settings import default_database_url
from autotune.task import Task
from autotune.text import html_table
from autotune.workloads import Workload, provenance_of, workload

versions()  # read from the packages' metadata now, not in the first look-up of a program that is at work

Source = Literal["exact", "range", "nearest", "default", "given", "tuned"]
"""``range``: between two measured sizes; ``given`` by the caller, ``tuned`` just now at a decorated kernel's launch."""


@dataclass(frozen=True)
class Found:
    """The result of a look-up. ``entry`` is its cache entry, None for the default."""

    config: Config
    source: Source
    entry: Entry | None = field(repr=False)
    reason: str
    """The reason why it is not exact, in one line; empty if it is."""

    @property
    def tuned_for(self) -> str:
        """The problem that the config was tuned for, with the inputs' distribution where it has one; empty for the
        default: ``dtype=bf16 … routing=zipf exponent=1.0``.
        """
        return "" if self.entry is None else fields_text(self.entry.key.fields)

    def _repr_html_(self) -> str:
        rows = [("source", self.source), ("reason", self.reason)]
        if self.entry is not None:
            from autotune.results.lines import entry_lines
            from autotune.results.result import Result

            rows += [("tuned for", self.tuned_for), *entry_lines(Result.of(self.entry))]
        return html_table("Found", [*rows, *((name, str(value)) for name, value in self.config.items())])

    @classmethod
    def of(cls, served: Served) -> Found | None:
        """The entry served, if there is one: exact, of a range or nearest."""
        entry = served.entry
        if entry is None:
            return None
        source: Source = "range" if served.of_range else "nearest" if served.reason else "exact"
        return cls(entry.winner.config, source, entry, served.reason)


def lookup(
    name: str | Workload, problem: Problem, *, machine: Machine | None = None, url: str | None = None,
    regime: str = DEFAULT_REGIME,
) -> Found:  # fmt: skip
    """The config for a problem: tuned exactly, else the nearest tuned one, else the default.

    ``name`` is a workload's, or FILE:CLASS of one in a file of one's own (a file that is imported already, or runs as
    the main script, is not loaded again), or the workload itself.

    ``regime`` is how the caller meets the operator: ``graph``, ``pipelined`` or ``isolated``. What was tuned for
    another one is not served, nor is a config that a caller in the regime cannot get as it was measured.

    The database is read once per workload and process, and once for each study that lends another config than its
    winner, then never again: ``forget_lookups`` starts afresh. Exact means the same problem, world size, device and
    interconnect, and the same sources, space and versions; an entry of other versions is stale and not served. Nearest
    means the same but for the problem's free dimensions (``free``), each within a factor of two, the smallest sum of
    their log ratios, smaller sizes first; its config is checked against the space for the actual problem. Where it
    would waste more of its work than where it was tuned (``Workload.waste``), the fastest other one of that study
    stands in, if it was faster than the library there; else the library's way. No database is no error; an unreadable
    one raises StoreError. Raises InvalidProblem where this machine cannot run the problem: not every one multiplies
    fp8.
    """
    with FORKS_WAIT:  # a workload's modules, torch and SQLAlchemy's are imported by a first one
        url = url or default_database_url()
        return _ANSWERS.find(
            workload_for(name, problem), Task(problem, machine or this_machine()), url, regime_of(regime)
        )


def workload_for(name: str | Workload, problem: Problem) -> Workload:
    """The workload for a look-up's ``name``. Raises UnknownWorkload, InvalidProblem for another one's problem, and
    InputError for something else than a workload, such as its class.
    """
    found: object = workload(name) if isinstance(name, str) else name
    if not isinstance(found, Workload):
        called = f"; write {found.__name__}(), which makes one" if isinstance(found, type) else ""
        raise InputError(f"{found!r} is not a workload: expected a name, FILE:CLASS or an instance of Workload{called}")
    if not isinstance(problem, found.problem_type):
        raise InvalidProblem(f"{found.name} takes a {found.problem_type.__name__}, not a {type(problem).__name__}")
    return found


def forget_lookups() -> None:
    """Read the database again at the next look-up."""
    forget_entries()
    _ANSWERS.clear()


class _Answers:
    """Answers already given. Threads may look up at once."""

    def __init__(self) -> None:
        self._answers: dict[tuple[object, ...], Found] = {}

    def clear(self) -> None:
        with LOCK.held, FORKS_WAIT:
            self._answers.clear()

    def find(self, found: Workload, task: Task[Problem], url: str, regime: Regime) -> Found:
        # Several workloads may share a type of problem: variants of a class, or the class before a reload. A caller may
        # make the workload anew for each look-up.
        asked = (type(found), found.space, url, task, regime)
        answer = self._answers.get(asked)
        if answer is None:
            with LOCK.held, FORKS_WAIT:
                answer = choose(found, task, read_entries(url, found.name, task.machine.device), regime)
                self._answers[asked] = answer
        return answer


_ANSWERS = _Answers()

MOST_WASTE = 1.12
"""Work that a config may waste where it is served, over what it wastes where it was tuned. Of 48 sizes between tuned
ones all that were slower than plain torch by 2 % and more were above it (2 H200, 2026-11-26).
"""


def choose(found: Workload, task: Task[Problem], entries: Entries, regime: Regime = DEFAULT_REGIME) -> Found:
    """The result for a problem among these entries; ``lookup`` takes all entries of a database."""
    problem = task.problem
    found.space.check_problem(task)
    served = serve(
        entries, CacheKey.of(task, regime), provenance_of(found), problem.free,
        lambda config: found.unservable(config, task, regime),
    )  # fmt: skip
    if served.entry is None:
        reason = served.reason + _other_inputs(entries, task, regime)
        return Found(found.default_config(task), "default", None, reason)
    lent, config = Found.of(served), served.entry.winner.config
    assert lent is not None
    if lent.source == "exact":
        return lent
    tuned = found.problem_type.from_dict(served.entry.key.fields)
    here, there = (found.waste(config, Task(each, task.machine)) for each in (problem, tuned))
    if here <= MOST_WASTE * there:
        return lent
    sizes = fields_text({name: served.entry.key.fields[name] for name in problem.free})
    standing_in = StandIn(found, task, served.entry, entries.measured(served.entry), MOST_WASTE * there)
    reason = f"{served.reason}; it would do {here:.2f} times the work needed here, {there:.2f} at {sizes}"
    return replace(standing_in.found(reason), source=lent.source)


@dataclass(frozen=True)
class StandIn:
    """The config in the place of an entry's winner that would waste too much."""

    workload: Workload
    task: Task[Problem]
    entry: Entry
    measured: Measured
    most_waste: float

    def found(self, reason: str) -> Found:
        """The fastest config that the entry's study measured, of a mode that was faster there than the library; else
        the library's way. In the untuned config's mode that one, which is made for this size. The entry has it in the
        winner's place, with its time at the tuned size.
        """
        usual = [each for each in self.workload.baselines(self.task).values() if self._serves(each)]
        libraries = {each["mode"] for each in usual}
        known = sorted(filter(self._as_measured, self.measured), key=lambda pair: self._time(pair[1]))
        library = next((time for config, time in known if config["mode"] in libraries), None)
        faster = [pair for pair in known if library is None or self._time(pair[1]) < self._time(library)]
        default = self.workload.default_config(self.task)
        for measured, time in faster:
            config = default if measured["mode"] == default["mode"] else measured
            if self._serves(config):
                modes = f"mode {config['mode']} instead of {self.entry.winner.config['mode']}"
                gain = f", {self._time(library) / self._time(time):.2f} times as fast as the library" if library else ""
                return self._lent(config, time, f"{reason}: {modes}{gain} there")
        time = library or min(self.entry.winner.baselines.values(), key=self._time, default=self.entry.winner.latency)
        told = f"{reason}: the library's way, for nothing else is known to have been faster there"
        return self._lent(usual[0] if usual else default, time, told)

    def _lent(self, config: Config, time: Latency, reason: str) -> Found:
        winner = replace(self.entry.winner, config=config, latency=time)
        return Found(config, "nearest", replace(self.entry, winner=winner), reason)

    def _time(self, latency: Latency) -> float:
        return latency.of(Regime(self.entry.key.regime))

    def _as_measured(self, pair: tuple[Config, Latency]) -> bool:
        return self.workload.unlike_measured(pair[0], Regime(self.entry.key.regime)) is None

    def _serves(self, config: Config) -> bool:
        regime = Regime(self.entry.key.regime)
        refused = self.workload.unservable(config, self.task, regime)
        return refused is None and self.workload.waste(config, self.task) <= self.most_waste


def _other_inputs(entries: Entries, task: Task[Problem], regime: Regime) -> str:
    """Inputs that the same sizes were tuned with, if none of these entries has the problem's own."""
    names, key = task.problem.of_inputs, CacheKey.of(task, regime)
    if not names or entries.of(key):
        return ""
    same = (each.key.fields for each in entries.alike(key, names))
    found = [fields_text({name: fields[name] for name in names if name in fields}) for fields in same]
    return f"; these sizes are tuned for {', or '.join(sorted(set(found)))}" if found else ""
