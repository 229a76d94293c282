"""A study: its trials in order, with a result or, where it is unfinished, without; and what its search tells."""

from __future__ import annotations

import dataclasses
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from autotune import schema
from autotune.config import Config, Value
from autotune.db import CacheKey, Entry, Store, StudyRecord, TrialRecord
from autotune.db.store import Kind
from autotune.db.values import key_values
from autotune.errors import InputError
from autotune.outcome import Latency, Outcome, Regime
from autotune.ranks.evaluation import RESTART
from autotune.recordings import tables
from autotune.results.figures import INTERPRETER_NOTE, dashed, drift_text, evaluated
from autotune.results.knobs import Knob, knobs_of
from autotune.results.order import config_in_order, fields_in_order
from autotune.results.price import price
from autotune.results.repeat import command_of, copies, repeat_of
from autotune.results.result import Result
from autotune.search_spaces import Space
from autotune.taxes.result import Taxes, summary
from autotune.timeline import Timeline, from_json
from autotune.tuning.finals import FINAL, disqualified, drift, in_finals, of_search
from autotune.workloads import Workload

BEST = 10
"""The number of best configs in a report."""

FEWEST_RANKED = 10
"""Below this number of measured predictions, a rank correlation would be noise."""

UNFINISHED = "Unfinished: the finals have not ended, so nothing here is a winner. The same tune command continues."


@dataclass(frozen=True)
class Ranked:
    """One of the best configs, with its latency in the search and, if it was there, in the finals."""

    config: Config
    latency: Latency
    final: Latency | None
    source: str


@dataclass(frozen=True)
class Ending:
    """The number of evaluations with one outcome, and an example."""

    outcome: Outcome
    count: int
    reason: str
    example: Config | None

    @property
    def title(self) -> str:
        """The outcome; configs that are invalid are not among those that were evaluated."""
        return "invalid, not counted" if self.outcome is Outcome.INVALID else self.outcome.value


@dataclass(frozen=True)
class Study:
    record: StudyRecord
    trials: tuple[TrialRecord, ...]
    """In the order of recording, those after the search too; none of an imported study."""
    space: Space | None
    """The space that was searched; None if it is not known."""
    result: Result | None
    """None as long as the study is unfinished."""
    workload: Workload | None = None
    ladder: Taxes | None = None
    """The measurements of ``tune taxes``; None if it was not run."""
    timeline: Timeline = field(default_factory=dict)
    """One traced call of the library's way and of the winner; empty where none was traced."""
    notes: tuple[str, ...] = ()
    """Caveats that come first."""

    @property
    def key(self) -> CacheKey:
        return self.record.key

    @property
    def regime(self) -> Regime:
        return Regime(self.key.regime)

    @property
    def title(self) -> str:
        """The workload, as the command line has it."""
        return dashed(self.key.workload)

    @cached_property
    def problem(self) -> dict[str, Any]:
        return fields_in_order(self.key, self.workload)

    @property
    def copies(self) -> dict[str, str]:
        """The winner to paste, by the place where it is needed; nothing without one."""
        return copies(self.key, self.winner, self.record.origin, self.workload) if self.winner is not None else {}

    @cached_property
    def command(self) -> str:
        """The command line that tunes the workload; empty for a kernel that its own program tunes."""
        return command_of(self.key, self.record.origin, self.workload)

    @property
    def repeat(self) -> str:
        """The command that tunes it again, or replays it."""
        if replayed := self.record.provenance.replay_of:
            return f"tune demo {tables.of_replay(self.key, replayed)} --seed {self.record.seed}"
        return repeat_of(self.key, self.problem, self.record.origin, self.record.seed, self.command)

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
        """The number of configs that were tried, baselines among them."""
        return evaluated({ending.outcome: ending.count for ending in self.endings})

    @cached_property
    def winner(self) -> Config | None:
        """The winner of the finals, else the fastest so far; None where nothing was measured."""
        if self.result is not None:
            return self.result.config
        failed = disqualified(self.trials)
        return min((each for each in self.measured if each not in failed), key=self.microseconds, default=None)

    @property
    def best(self) -> tuple[Ranked, ...]:
        return self._ranked(failed=False)[:BEST]

    @property
    def disqualified(self) -> tuple[Ranked, ...]:
        """Configs that failed later, in the finals or their proof; latencies are those of the search."""
        return self._ranked(failed=True)

    def _ranked(self, *, failed: bool) -> tuple[Ranked, ...]:
        """The measured configs that failed later, or the others; the fastest first."""
        out, final = disqualified(self.trials), in_finals(self.trials)
        sources = {trial.config: trial.source for trial in reversed(self.searched) if trial.evaluation.latency}
        return tuple(
            Ranked(each, self.measured[each], None if failed else final.get(each), sources[each])
            for each in sorted(self.measured, key=self.microseconds)
            if (each in out) is failed
        )

    @cached_property
    def endings(self) -> tuple[Ending, ...]:
        """Every kind of outcome that occurred, the commonest first, each with its first reason; last those that were
        not tried at all.
        """
        counts = Counter(record.evaluation.outcome for record in self.searched)
        examples = {each.evaluation.outcome: each for each in reversed(self.searched) if each.evaluation.reason}
        endings = []
        for outcome, count in sorted(counts.items(), key=lambda pair: (pair[0] is Outcome.INVALID, -pair[1])):
            example = examples.get(outcome)
            reason = example.evaluation.reason if example else ""
            endings.append(Ending(outcome, count, reason, example.config if example else None))
        return tuple(endings)

    @cached_property
    def _knobs(self) -> tuple[tuple[Knob, ...], tuple[str, ...]]:
        measured = {config: self.microseconds(config) for config in self.measured}
        return knobs_of(measured, {name: self.by_value(name, measured) for name in self.varied(measured)}, self.space)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return self._knobs[0]

    @property
    def knob_notes(self) -> tuple[str, ...]:
        """Optuna's warnings about its importances."""
        return self._knobs[1]

    @property
    def remeasured(self) -> int:
        """Evaluations of the finals."""
        return sum(record.source == FINAL for record in self.trials)

    @property
    def seconds(self) -> float:
        """Spent in evaluations, search and finals."""
        phases = [record.evaluation.seconds for record in self.trials]
        return sum(each.get("total", sum(each.values())) for each in phases)

    @property
    def measuring(self) -> float:
        """The part of ``seconds`` in which the ranks measured; in the rest they compiled and checked."""
        return sum(record.evaluation.seconds.get("measure", 0.0) for record in self.trials)

    @property
    def restarts(self) -> list[float]:
        """Seconds spent on restarting the ranks, for each config that killed them."""
        return [phases[RESTART] for each in self.trials if RESTART in (phases := each.evaluation.seconds)]

    @cached_property
    def rank_correlation(self) -> float | None:
        """Spearman's, of the cost model's predictions and the search's latencies; None if too few have both."""
        pairs = [
            (record.predicted, record.evaluation.latency.median)
            for record in self.searched
            if record.predicted is not None and record.evaluation.latency is not None
        ]
        if len(pairs) < FEWEST_RANKED or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
            return None
        predicted, measured = (_ranks(side) for side in zip(*pairs, strict=True))
        return statistics.correlation(predicted, measured)

    @property
    def last_moment(self) -> datetime | None:
        """End of the study, else the time of its last recorded trial."""
        if self.result is not None and self.result.entry is not None:
            return self.result.entry.finished_at
        return max((trial.created_at for trial in self.trials if trial.created_at is not None), default=None)

    def microseconds(self, config: Config) -> float:
        """A measured config's latency in the search."""
        return self.measured[config].of(self.regime)

    def of_mode(self, mode: str) -> dict[Config, float]:
        """The measured configs of a mode with their latencies; an empty mode is that of kernels without."""
        return {config: self.microseconds(config) for config in self.measured if mode_of(config) == mode}

    def names(self, configs: Collection[Config]) -> list[str]:
        """The dimensions of some configs, in the space's order, or else ``mode`` first."""
        found = dict.fromkeys(name for config in configs for name in config)
        if self.space is not None:
            return [name for name in self.space.dimensions if name in found]
        return sorted(found, key=lambda name: name != "mode")

    def values(self, name: str, configs: Collection[Config]) -> list[Value]:
        """The values that some configs have for a dimension, in its order in the space, or else numbers first."""
        found = {config[name] for config in configs if name in config}
        if self.space is not None:
            return [value for value in self.space.dimensions[name].values if value in found]
        return sorted(found, key=lambda value: (isinstance(value, str), value if not isinstance(value, str) else 0,
                                                str(value)))  # fmt: skip

    def varied(self, configs: Collection[Config]) -> list[str]:
        """The dimensions that take more than one value among some configs."""
        return [name for name in self.names(configs) if len(self.values(name, configs)) > 1]

    def by_value(self, name: str, configs: Mapping[Config, float]) -> dict[Value, list[float]]:
        """Latencies of some configs by their value of a dimension."""
        return {
            value: [taken for config, taken in configs.items() if config.get(name) == value]
            for value in self.values(name, configs)
        }

    @cached_property
    def modes(self) -> list[str]:
        """The modes of everything that was tried; one without a name where the kernel has none."""
        configs = [trial.config for trial in self.trials]
        return [str(value) for value in self.values("mode", configs)] or [""]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-able values, and what the search tells."""
        return {
            **(self.result.to_dict() if self.result is not None else key_values(self.key)),
            "seed": self.record.seed,
            "space_size": self.record.space_size,
            "notes": list(self.notes),
            "repeat": self.repeat,
            "copies": self.copies,
            "ladder": None if self.ladder is None else summary(self.ladder),
            "searched": self.evaluated,
            "remeasured": self.remeasured,
            "seconds": self.seconds,
            "measuring": self.measuring,
            "restarts": self.restarts,
            "rank_correlation": self.rank_correlation,
            **{
                name: schema.write(getattr(self, name))
                for name in ("best", "disqualified", "endings", "knobs", "knob_notes")
            },
        }


def mode_of(config: Config) -> str:
    """The mode as text; empty for a kernel without modes."""
    return str(config.get("mode", ""))


def finished(store: Store, entry: Entry, workload: Workload | None = None) -> Study:
    """The study behind an entry of the cache.

    The workload, if it can be loaded, gives the order of the fields, and the dimensions' order, help and importance. A
    space whose fingerprint has changed since the study is not used.
    """
    record = next(iter(store.studies(number=entry.study_id)), None)
    if record is None:  # its row was damaged since it was read
        record = StudyRecord(entry.study_id, entry.key, entry.provenance, entry.seed, entry.space_size, "finished",
                             entry.finished_at, entry.winner)  # fmt: skip
    record = dataclasses.replace(record, provenance=entry.provenance, winner=entry.winner)
    study = _study(store, record, workload, Result.of(entry, workload))
    notes = [INTERPRETER_NOTE] if entry.key.is_interpreted else []
    if entry.imported_at is not None:
        notes.append("Imported: its trials are in the database it was tuned in.")
    if entry.provenance.replay_of:
        notes.append(f"A replay of a table recorded {entry.provenance.replay_of}: its times were measured on that day.")
    elif workload is not None and study.space is None:
        notes.append("The search space has changed since; dimensions are shown without importance.")
    if not entry.key.is_interpreted and (told := drift_text(drift(study.trials))):
        notes.append(told)
    if told := price(entry, store):
        notes.append(f"The same bits at all sizes: {told}.")
    if workload is not None and workload.space.holds(entry.winner.config):
        unlike = workload.unlike_measured(entry.winner.config, study.regime)
        notes += [f"No look-up serves this config: {unlike}. Tune again."] if unlike is not None else []
    readers: dict[Kind, Any] = {"taxes": Taxes.from_json, "timeline": from_json}
    attached: dict[Kind, Any] = {}
    for kind, read in readers.items():
        try:
            if (text := store.attached(entry.study_id, kind)) is not None:
                attached[kind] = read(text)
        except InputError as error:
            notes.append(f"{error}.")
    ladder, timeline = attached.get("taxes"), attached.get("timeline", {})
    return dataclasses.replace(study, ladder=ladder, timeline=timeline, notes=tuple(notes))


def unfinished(store: Store, record: StudyRecord, workload: Workload | None = None) -> Study:
    """A study that has no winner: under way, interrupted, or one in which nothing could be measured."""
    notes = (UNFINISHED, *([INTERPRETER_NOTE] if record.key.is_interpreted else []))
    return dataclasses.replace(_study(store, record, workload, None), notes=notes)


def _study(store: Store, record: StudyRecord, workload: Workload | None, result: Result | None) -> Study:
    unchanged = workload is not None and workload.space.fingerprint() == record.provenance.space
    space = workload.space if workload is not None and unchanged else None
    known = store.trials(record.id, None if space is None else space.holds)
    replayed = workload is not None and record.provenance.replay_of
    if workload is not None and replayed and all(workload.space.holds(each.config) for each in known):
        space = workload.space  # a replay's is a part of it
    ordered = (dataclasses.replace(each, config=config_in_order(record.key, each.config, workload)) for each in known)
    return Study(record, tuple(ordered), space, result, workload)


def _ranks(values: Sequence[float]) -> list[float]:
    """Equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]
