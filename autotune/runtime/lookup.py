"""The look-up: the config for a problem here, and its source. It never tunes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Literal

from autotune.config import Config
from autotune.db import CacheKey, Entry
from autotune.db.rated import rated
from autotune.db.records import fields_text
from autotune.device_rates import rates_of
from autotune.errors import InputError, InvalidProblem
from autotune.forks import FORKS_WAIT
from autotune.machine import Machine, versions
from autotune.machine import machine as this_machine
from autotune.outcome import DEFAULT_REGIME, Latency, Regime, regime_of
from autotune.problem import Problem
from autotune.runtime.entries import LOCK, UNTUNED, Entries, Measured, Served, forget_entries, read_entries, serve
from autotune.settings import DEFAULTS, PIN, default_database_url, pinned
from autotune.task import Task
from autotune.workloads import Workload, provenance_of, workload

versions()  # read from the packages' metadata now, not in the first look-up of a program that is at work

Source = Literal["exact", "range", "nearest", "predicted", "default", "given", "pinned", "tuned"]
"""``range``: between two measured sizes; ``predicted`` by the rates of this kind of GPU, or by what other versions
measured; ``default``: where no rates are known, of a GPU the library's way; ``given`` by the caller, ``pinned`` by
AUTOTUNE_PIN, ``tuned`` just now at a decorated kernel's launch.
"""


BY_DEFAULTS = f"{DEFAULTS.name} is set"


@dataclass(frozen=True)
class Found:
    """The result of a look-up. ``entry`` is its cache entry, None where nothing tuned is served."""

    config: Config
    source: Source
    entry: Entry | None = field(repr=False)
    reason: str
    """The reason why it is not exact, in one line; empty if it is."""

    @property
    def tuned_for(self) -> str:
        """The problem that the config was tuned for, with the inputs' distribution where it has one; empty without an
        entry: ``dtype=bf16 … routing=zipf exponent=1.0``.
        """
        return "" if self.entry is None else fields_text(self.entry.key.fields)

    @property
    def by_environment(self) -> bool:
        """True if AUTOTUNE_PIN or AUTOTUNE_DEFAULTS chose the config."""
        return self.source == "pinned" or self.reason == BY_DEFAULTS

    @classmethod
    def of(cls, served: Served) -> Found | None:
        """The entry served, if there is one: exact, of a range or nearest."""
        entry = served.entry
        if entry is None:
            return None
        source: Source = "range" if served.beyond else "nearest" if served.reason else "exact"
        return cls(entry.winner.config, source, entry, served.reason)


_ANSWERS: dict[tuple[object, ...], Found] = {}
"""Answers already given. Threads may look up at once."""


def lookup(
    name: str | Workload, problem: Problem, *, machine: Machine | None = None, url: str | None = None,
    regime: str = DEFAULT_REGIME,
) -> Found:  # fmt: skip
    """The config for a problem: tuned exactly, else between or near what is tuned, else predicted, else the default.

    ``name`` is a workload's, or FILE:CLASS of one in a file of one's own (a file that is imported already, or runs as
    the main script, is not loaded again), or the workload itself.

    ``regime`` is how the caller meets the operator: ``graph``, ``pipelined`` or ``isolated``. What was tuned for
    another one is not served, nor is a config that a caller in the regime cannot get as it was measured.

    The database is read once per workload and process, and once for each study that lends another config than its
    winner, then never again: ``forget_lookups`` starts afresh. Exact means the same problem, world size, device and
    interconnect, and the same sources, space and versions; any other entry is stale and not served. Nearest
    means the same but for the problem's free dimensions (``free``), each within a factor of two, see ``serve``; its
    config is checked against the space for the actual problem. Where it would waste more of its work than where it was
    tuned (``Workload.waste``), the fastest other one of that study stands in, if it was faster than the library there;
    else the library's way. Predicted is the config that a stale entry of the same kernels and space has, and without
    one what the GPU's rates choose (``Workload.by_rates``), as its data sheet or an entry of as many ranks has them;
    the default, on a GPU without rates, is the library's way; all without an entry. No database is no error; an
    unreadable one raises StoreError. AUTOTUNE_PIN and AUTOTUNE_DEFAULTS come before all of it; a pinned config that is
    not valid for the problem raises InvalidConfig. Raises InvalidProblem where this machine cannot run the problem: not
    every one multiplies fp8. An invariant problem gets one answer for all its sizes, see docs/operators.md.
    """
    with FORKS_WAIT:  # a workload's modules, torch and SQLAlchemy's are imported by a first one
        url, found = url or default_database_url(), workload_for(name, problem)
        problem = problem.family() if problem.is_invariant else problem  # one answer for all sizes, whoever gives it
        task, known_regime = Task(problem, machine or this_machine()), regime_of(regime)
        # Several workloads may share a type of problem: variants of a class, or the class before a reload. A caller may
        # make the workload anew for each look-up.
        asked = (type(found), found.space, url, task, known_regime)
        answer = _ANSWERS.get(asked)
        if answer is None:
            with LOCK.held:
                answer = by_environment(found, task, known_regime) or choose(
                    found, task, read_entries(url, found.name, task.machine.device), known_regime
                )
                _ANSWERS[asked] = answer
        return answer


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
    with LOCK.held, FORKS_WAIT:
        _ANSWERS.clear()


def by_environment(found: Workload, task: Task[Problem], regime: Regime) -> Found | None:
    """The config that AUTOTUNE_PIN or AUTOTUNE_DEFAULTS asks for, so that two runs differ in one thing."""
    text = pinned(found.name)
    if text is not None:
        return Found(found.written(text, task), "pinned", None, f"{PIN.name} says {text}")
    if DEFAULTS.value():
        return Found(_untuned(found, task, "", regime).config, "default", None, BY_DEFAULTS)
    return None


MOST_WASTE = 1.12
"""Work that a config may waste where it is served, over what it wastes where it was tuned. Of 48 sizes between tuned
ones all that were slower than plain torch by 2 % and more were above it (2 H200, 2026-11-26).
"""


def choose(found: Workload, task: Task[Problem], entries: Entries, regime: Regime = DEFAULT_REGIME) -> Found:
    """The result for a problem among these entries; ``lookup`` takes all entries of a database."""
    problem = task.problem
    found.space.check_problem(task)
    if problem.is_invariant:  # whose bits no other result may change
        return _for_all_sizes(found, task, entries, regime)
    task = rated(task, lambda: entries)
    served = serve(
        entries, CacheKey.of(task, regime), provenance_of(found), problem.free,
        lambda config: found.unservable(config, task, regime),
    )  # fmt: skip
    if served.entry is None:
        reason = served.reason + _other_inputs(entries, task, regime)
        if served.of_other_versions is not None:
            told = f"{reason}; its config is taken until it is tuned again"
            return Found(served.of_other_versions.winner.config, "predicted", None, told)
        return _untuned(found, task, reason, regime)
    lent, config = Found.of(served), served.entry.winner.config
    assert lent is not None
    if lent.source == "exact":
        return lent
    tuned = found.problem_type.from_dict(served.entry.key.fields)
    here, there = (found.waste(config, Task(each, task.machine)) for each in (problem, tuned))
    if here <= MOST_WASTE * there:
        return lent
    sizes = fields_text({name: served.entry.key.fields[name] for name in problem.free})
    reason = f"{served.reason}; it would do {here:.2f} times the work needed here, {there:.2f} at {sizes}"
    around = [served.entry] if served.beyond is None else [served.entry, served.beyond]
    stand_ins = [StandIn(found, task, each, entries.measured(each), reason) for each in around]
    known = (standing_in.fastest for standing_in in stand_ins)
    _, best = max((each for each in known if each is not None), key=itemgetter(0), default=(1.0, stand_ins[0].library))
    return replace(best, source=lent.source)


def _for_all_sizes(found: Workload, task: Task[Problem], entries: Entries, regime: Regime) -> Found:
    """The one config of an invariant problem, whatever its sizes: the newest tuned one, else one for usual sizes."""
    problem, today = task.problem, provenance_of(found)
    family = Task(problem.family(), task.machine)
    for entry in entries.alike(CacheKey.of(family, regime), (*problem.free, *problem.of_inputs)):
        tuned = Task(found.problem_type.from_dict(entry.key.fields), task.machine)
        config = entry.winner.config
        if entry.provenance == today and found.unservable(config, tuned, regime) is None:
            return Found(config, "exact", entry, "")
    reason = f"{UNTUNED}: one config for all sizes, made for {fields_text(family.problem.as_dict())}"
    return _untuned(found, family, reason, regime)


def _untuned(found: Workload, task: Task[Problem], reason: str, regime: Regime) -> Found:
    """By the rates of the kind of GPU; the library's way where these are unknown, and it is the same for all sizes."""
    default, machine, problem = found.default_config(task), task.machine, task.problem
    if found.by_rates and rates_of(machine) is not None:
        return Found(default, "predicted", None, reason)
    if found.by_rates and not machine.is_interpreter and not problem.is_invariant:
        library = (each for each in found.baselines(task).values() if found.unservable(each, task, regime) is None)
        kind = f"{problem.world_size} × {machine.device}"
        reason += f"; the library's way, for of {kind} nothing is known until this operator is tuned on them"
        default = next(library, default)
    return Found(default, "default", None, reason)


@dataclass(frozen=True)
class StandIn:
    """A config in the place of a winner that would waste too much, by what the study of one entry has measured."""

    workload: Workload
    task: Task[Problem]
    entry: Entry
    measured: Measured
    reason: str

    @cached_property
    def fastest(self) -> tuple[float, Found] | None:
        """How many times as fast as the library, and the config: the fastest that was measured of a mode that was
        faster there than the library; of the untuned config's mode that one, made for this size, if the measured one
        wastes too much. The entry has it in the winner's place, with its time at the tuned size.
        """
        default = self.workload.default_config(self.task)
        for measured, time in self._known:
            if self._library is not None and self._time(time) >= self._time(self._library):
                break
            for config in [measured, default] if measured["mode"] == default["mode"] else [measured]:
                if self._serves(config):
                    gain = self._time(self._library) / self._time(time) if self._library else 1.0
                    told = f", {gain:.2f} times as fast as the library" if self._library else ""
                    modes = f"mode {config['mode']} instead of {self.entry.winner.config['mode']}"
                    return gain, self._lent(config, time, f"{modes}{told} there")
        return None

    @property
    def library(self) -> Found:
        default = self.workload.default_config(self.task)
        least = min(self.entry.winner.baselines.values(), key=self._time, default=self.entry.winner.latency)
        told = "the library's way, for nothing else is known to have been faster there"
        return self._lent(self._usual[0] if self._usual else default, self._library or least, told)

    @cached_property
    def _usual(self) -> list[Config]:
        return [each for each in self.workload.baselines(self.task).values() if self._serves(each)]

    @cached_property
    def _known(self) -> Measured:
        regime = Regime(self.entry.key.regime)
        found = (pair for pair in self.measured if self.workload.unlike_measured(pair[0], regime) is None)
        return sorted(found, key=lambda pair: self._time(pair[1]))

    @cached_property
    def _library(self) -> Latency | None:
        modes = {each["mode"] for each in self._usual}
        return next((time for config, time in self._known if config["mode"] in modes), None)

    @cached_property
    def _most_waste(self) -> float:
        tuned = self.workload.problem_type.from_dict(self.entry.key.fields)
        return MOST_WASTE * self.workload.waste(self.entry.winner.config, Task(tuned, self.task.machine))

    def _lent(self, config: Config, time: Latency, told: str) -> Found:
        winner = replace(self.entry.winner, config=config, latency=time)
        return Found(config, "nearest", replace(self.entry, winner=winner), f"{self.reason}: {told}")

    def _time(self, latency: Latency) -> float:
        return latency.of(Regime(self.entry.key.regime))

    def _serves(self, config: Config) -> bool:
        regime = Regime(self.entry.key.regime)
        refused = self.workload.unservable(config, self.task, regime)
        return refused is None and self.workload.waste(config, self.task) <= self._most_waste


def _other_inputs(entries: Entries, task: Task[Problem], regime: Regime) -> str:
    """Inputs that the same sizes were tuned with, if none of these entries has the problem's own."""
    names, key = task.problem.of_inputs, CacheKey.of(task, regime)
    if not names or entries.of(key):
        return ""
    same = (each.key.fields for each in entries.alike(key, names))
    found = [fields_text({name: fields[name] for name in names if name in fields}) for fields in same]
    return f"; these sizes are tuned for {', or '.join(sorted(set(found)))}" if found else ""
