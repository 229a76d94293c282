"""A study as the page's views see it: its trials in order, with a winner or, where it is unfinished, without."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from autotune.config import Config, Value
from autotune.db import Entry, Store, StudyRecord, TrialRecord
from autotune.outcome import Latency, Regime
from autotune.results.builder import build, endings_of, space_of
from autotune.results.copies import copies
from autotune.results.figures import INTERPRETER_NOTE, dashed, evaluated
from autotune.results.knobs import knobs_of
from autotune.results.model import Ending, Knob, Report
from autotune.results.order import fields_in_order
from autotune.results.repeat import command_of, repeat_of
from autotune.search_spaces import Space
from autotune.tuning.finals import disqualified, of_search
from autotune.workloads import Workload


@dataclass(frozen=True)
class Study:
    """Everything a page tells. ``report`` is None as long as the study is unfinished."""

    record: StudyRecord
    problem: dict[str, object]
    trials: tuple[TrialRecord, ...]
    """All trials in the order of recording, those after the search too."""
    space: Space | None
    """The space that was searched; None if it is not known."""
    report: Report | None
    knobs: tuple[Knob, ...]
    endings: tuple[Ending, ...]
    notes: tuple[str, ...] = ()
    knob_notes: tuple[str, ...] = ()
    workload: Workload | None = None
    command: str = ""
    """The command line that tunes the workload; empty for a kernel that its own program tunes."""

    @property
    def copies(self) -> dict[str, str]:
        """The winner to paste, by the place where it is needed; nothing without one."""
        if self.winner is None:
            return {}
        return copies(self.record.key, self.winner, self.record.origin, self.workload)

    @property
    def repeat(self) -> str:
        """The command that tunes it again."""
        return repeat_of(self.record.key, self.problem, self.record.origin, self.record.seed, self.command)

    @property
    def regime(self) -> Regime:
        """The regime that the study is tuned for."""
        return Regime(self.record.key.regime)

    @property
    def title(self) -> str:
        """The workload, as the command line has it."""
        return dashed(self.record.key.workload)

    @cached_property
    def searched(self) -> tuple[TrialRecord, ...]:
        """The search's trials, without those that came after it."""
        return tuple(of_search(self.trials))

    @cached_property
    def measured(self) -> dict[Config, Latency]:
        """The configs that the search measured, in the order of the trials."""
        found: dict[Config, Latency] = {}
        for trial in self.searched:
            if trial.evaluation.latency is not None:
                found.setdefault(trial.config, trial.evaluation.latency)
        return found

    @cached_property
    def evaluated(self) -> int:
        """The number of configs that were tried."""
        return evaluated({ending.outcome: ending.count for ending in self.endings})

    @property
    def winner(self) -> Config | None:
        """The winner of the finals, else the fastest so far; None where nothing was measured."""
        if self.report is not None:
            return self.report.config
        failed = disqualified(self.trials)
        return min((each for each in self.measured if each not in failed), key=self.microseconds, default=None)

    def microseconds(self, config: Config) -> float:
        """A measured config's latency in the search."""
        return self.measured[config].of(self.regime)

    def of_mode(self, mode: str) -> dict[Config, float]:
        """The measured configs of a mode with their latencies; an empty mode is that of kernels without."""
        return {config: self.microseconds(config) for config in self.measured if mode_of(config) == mode}

    def names(self, configs: Sequence[Config]) -> list[str]:
        """The dimensions of some configs, in the space's order where that is known, ``mode`` first."""
        known = list(self.space.dimensions) if self.space is not None else []
        found = dict.fromkeys(name for config in configs for name in config)
        rest = sorted((name for name in found if name not in known), key=lambda name: name != "mode")
        return [name for name in known if name in found] + rest

    def values(self, name: str, configs: Sequence[Config]) -> list[Value]:
        """The values that some configs have for a dimension, in the dimension's order where that is known."""
        found = list(dict.fromkeys(config[name] for config in configs if name in config))
        if self.space is not None and name in self.space.dimensions:
            order: dict[Value, int] = {value: i for i, value in enumerate(self.space.dimensions[name].values)}
            return sorted(found, key=lambda value: (order.get(value, len(order)), str(value)))
        return sorted(found, key=lambda value: (isinstance(value, str), value if not isinstance(value, str) else 0,
                                                str(value)))  # fmt: skip

    def varied(self, configs: Sequence[Config]) -> list[str]:
        """The dimensions that take more than one value among some configs."""
        return [name for name in self.names(configs) if len(self.values(name, configs)) > 1]

    @cached_property
    def modes(self) -> list[str]:
        """The modes of everything that was tried; one without a name where the kernel has none."""
        configs = [trial.config for trial in self.trials]
        return [str(value) for value in self.values("mode", configs)] or [""]


def mode_of(config: Config) -> str:
    """The mode as text; empty for a kernel without modes."""
    return str(config.get("mode", ""))


def finished(store: Store, entry: Entry, workload: Workload | None = None) -> Study:
    """The study behind an entry of the cache."""
    report = build(store, entry, workload)
    record = next(iter(store.studies(number=entry.study_id)), None)
    if record is None:  # its row was damaged since it was read
        record = StudyRecord(entry.study_id, entry.key, entry.provenance, entry.seed, entry.space_size, "finished",
                             entry.finished_at, entry.winner)  # fmt: skip
    space = space_of(workload, record.provenance)
    return Study(
        record=dataclasses.replace(record, winner=entry.winner),
        problem=report.problem,
        trials=tuple(store.trials(entry.study_id, None if space is None else space.holds)),
        space=space,
        report=report,
        knobs=report.knobs,
        endings=report.endings,
        notes=report.notes,
        knob_notes=report.knob_notes,
        workload=workload,
        command=command_of(record.key, record.origin, workload),
    )


def unfinished(store: Store, record: StudyRecord, workload: Workload | None = None) -> Study:
    """A study that has no winner: under way, interrupted, or one in which nothing could be measured."""
    space = space_of(workload, record.provenance)
    trials = tuple(store.trials(record.id, None if space is None else space.holds))
    searched = of_search(trials)
    knobs, warned = knobs_of(searched, space, Regime(record.key.regime))
    notes = ["Unfinished: the finals have not ended, so nothing here is a winner. The same tune command continues."]
    notes += [INTERPRETER_NOTE] if record.key.is_interpreted else []
    return Study(
        record=record,
        problem=fields_in_order(record.key, workload),
        trials=trials,
        space=space,
        report=None,
        knobs=knobs,
        endings=endings_of(searched),
        notes=tuple(notes),
        knob_notes=warned,
        workload=workload,
        command=command_of(record.key, record.origin, workload),
    )


def last_moment(study: Study) -> datetime | None:
    """End of the study, else the time of its last recorded trial."""
    if study.report is not None:
        return study.report.finished_at
    return max((trial.created_at for trial in study.trials if trial.created_at is not None), default=None)
