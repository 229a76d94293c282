"""The store's records as frozen dataclasses: cache keys, provenance, trials, winners, entries and studies."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from autotune.config import Config
from autotune.db.lease import Held
from autotune.machine import INTERPRETER
from autotune.outcome import DEFAULT_REGIME, LONGEST, Evaluation, Latency, Part, Regime, Time
from autotune.problem import Problem
from autotune.schema import Within
from autotune.task import Task
from autotune.text import shortened

Differences = dict[str, tuple[str, str]]
"""Differing fields by name, with both sides' values."""

Name = Annotated[str, Within(1)]

Columns = tuple[Any, ...]
"""The fields of a key or a provenance in their order, as they are in a row, which may be damaged."""

State = Literal["running", "finished", "superseded"]

HASHED = {"source_hash": "the kernels' sources have changed", "space": "the search space has changed"}
"""Told where these hashes of two provenances differ."""

REPLAY = ", replay of "
"""In a space, before the date of the table that is replayed."""

RECORDED = " recorded"
"""At the end of a space, where a table of all its configs is measured."""

ABSENT = "absent"
"""Shown for a field that one side of a comparison lacks."""


@dataclass(frozen=True)
class CacheKey:
    """The key of a tuned config: problem, ranks, device, interconnect, regime."""

    workload: Name
    problem: str
    """Canonical JSON, from ``Problem.to_json()``."""
    world_size: Annotated[int, Within(1, 2**31 - 1)]
    device: Name
    arch: Name
    interconnect: Name
    regime: str = DEFAULT_REGIME.value
    """The regime in which the config is the fastest."""

    def __post_init__(self) -> None:
        """Raise ValueError for a problem that is not canonical JSON, which no look-up would find, and for an unknown
        regime.
        """
        Regime(self.regime)
        values = json.loads(self.problem)
        if not isinstance(values, dict) or json.dumps(values, sort_keys=True, separators=(",", ":")) != self.problem:
            raise ValueError(f"problem {self.problem}: expected the canonical JSON of Problem.to_json()")

    @classmethod
    def of(cls, task: Task[Problem], regime: Regime = DEFAULT_REGIME) -> Self:
        problem, machine = task.problem, task.machine
        return cls(
            workload=problem.workload,
            problem=problem.to_json(),
            world_size=problem.world_size,
            device=machine.device,
            arch=machine.arch,
            interconnect=machine.interconnect,
            regime=regime.value,
        )

    @property
    def fields(self) -> dict[str, Any]:
        """The problem's fields by name."""
        values: dict[str, Any] = json.loads(self.problem)
        return values

    @functools.cached_property
    def is_kernel(self) -> bool:
        """True for what a decorated kernel stored: a workload's problem names its world size, a kernel's its dtypes."""
        fields = self.fields
        return "world_size" not in fields or any(name.endswith(".dtype") for name in fields)

    @property
    def is_interpreted(self) -> bool:
        """True for times of Triton's interpreter, which has no regimes and says nothing about GPUs."""
        return self.device == INTERPRETER

    def differences(self, other: CacheKey) -> Differences:
        """The fields that differ, the problem's fields by their names: ``{"m": ("4096", "8192")}``."""
        return _differences(self._flat(), other._flat())

    def _flat(self) -> dict[str, Any]:
        outer = dataclasses.asdict(self)
        return {**json.loads(outer.pop("problem")), **outer}


@dataclass(frozen=True)
class Provenance:
    """The software of a measurement; an entry with other provenance than today's is stale."""

    source_hash: Name
    """Hash of the kernel's source files."""
    space: Name
    """Fingerprint of the search space."""
    triton: str
    iris: str
    torch: str
    driver: str

    @property
    def replay_of(self) -> str:
        """The date of the recorded table that a result replays; empty for what was measured."""
        return self.space.partition(REPLAY)[2]

    def as_replay(self, recorded: datetime) -> Provenance:
        """The provenance of a replay: its space is none that a look-up asks for."""
        return dataclasses.replace(self, space=f"{self.space}{REPLAY}{recorded:%Y-%m-%d}")

    @property
    def is_recording(self) -> bool:
        """True for what ``tune record`` measures: it ends in a table, not in a winner."""
        return self.space.endswith(RECORDED)

    def as_recording(self) -> Provenance:
        """The provenance of a recording: its space is none that is searched."""
        return dataclasses.replace(self, space=f"{self.space}{RECORDED}")

    def differences(self, other: Provenance) -> Differences:
        return _differences(dataclasses.asdict(self), dataclasses.asdict(other))

    def changes(self, today: Provenance) -> str:
        """Why a result of this provenance is stale today, in words; empty where it is not."""
        if self == today:
            return ""
        found = []
        for name, (then, now) in self.differences(today).items():
            text = f"{name} {then or 'unknown'} is now {now or 'unknown'}"
            found.append(f"{HASHED[name]} ({text})" if name in HASHED else text)
        return "; ".join(found)


@dataclass(frozen=True)
class TrialRecord:
    """One evaluation of one config. A config may have several: finalists are measured again."""

    config: Config
    evaluation: Evaluation
    source: str = ""
    """Origin of the proposal: ``baseline``, ``first``, ``sampler``, ``surrogate``, ``listed``, ``final`` or
    ``recorded``.
    """
    number: int | None = None
    """Number of earlier trials of the search; in the finals, the round."""
    predicted: float | None = None
    """Microseconds, predicted by the cost model before the measurement."""
    id: int | None = field(default=None, compare=False)
    """Set by the store; the order of recording."""
    created_at: datetime | None = field(default=None, compare=False)
    """Set by the store; UTC."""


@dataclass(frozen=True)
class Roofline:
    """Lower bounds on the problem's time on this device: no kernel beats the slowest resource."""

    rates: dict[str, Annotated[float, Within(5e-324, LONGEST)]]
    """Measured rates of one device per microsecond: ``flops``, bytes of ``memory``, bytes over the ``links``."""
    times: Annotated[dict[str, Part], Within(1)]
    """Microseconds for which the problem keeps each resource busy."""

    @property
    def slowest(self) -> str:
        """The resource that is busy longest."""
        return max(self.times, key=lambda resource: self.times[resource])

    @property
    def limit(self) -> float:
        """Microseconds for which the slowest resource is busy."""
        return self.times[self.slowest]


@dataclass(frozen=True)
class Routed:
    """A winner under another routing than the one that it is tuned for."""

    latency: Latency
    baselines: dict[str, Latency] = field(default_factory=dict)
    """The baseline that was the fastest in the finals, by name; empty if it fails here."""


@dataclass(frozen=True)
class Winner:
    """The config that a study chose, with the baselines and limits of the same run."""

    config: Annotated[Config, Within(1)]
    latency: Latency
    baselines: dict[str, Latency] = field(default_factory=dict)
    limits: dict[str, Latency] = field(default_factory=dict)
    """The operation's parts alone, by name."""
    roofline: Roofline | None = None
    """None under the interpreter, or if work or rates are unknown."""
    routings: dict[str, Routed] = field(default_factory=dict)
    """By the names of ``Problem.other_routings``, as a mixture of experts has them; those that were measured."""
    beside: dict[str, Time] = field(default_factory=dict)
    """Microseconds in the key's regime of the finals' other configs, by their JSON: what a neighbour's config takes."""
    verified: bool = False
    """True if nothing was searched: the library, the default and the configs of neighbouring sizes were measured."""


@dataclass(frozen=True)
class Entry:
    """A finished study as the cache serves it."""

    key: CacheKey
    provenance: Provenance
    winner: Winner
    study_id: int
    finished_at: datetime
    """UTC."""
    trials: Annotated[int, Within(0)]
    """Evaluations recorded, here or where it was tuned; every round of the finals counts."""
    seed: int
    space_size: Annotated[int, Within(0)]
    imported_at: datetime | None = None
    """UTC; None if it was tuned into this database."""
    origin: str = ""
    """``FILE:NAME`` of the kernel or workload, for people; empty for a built-in workload, or if it is not known."""


class Unread:
    """A finished study of which only the columns of key and provenance are known; the rest is made of its row when it
    is asked for.

    That takes fifty times as long as to read the row, and a look-up serves one study of thousands. With slots, and few
    objects per study: Python's garbage collector looks at them all.
    """

    __slots__ = ("_entry", "_read", "_row", "columns")

    def __init__(self, columns: Columns, row: Any, read: Callable[[Any], Entry | None]) -> None:
        """``read`` makes the entry of the row; None, with a warning, if it is damaged."""
        self.columns, self._row, self._read = columns, row, read

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """The row of an entry at hand."""
        return cls((*columns(entry.key), *columns(entry.provenance)), entry, lambda entry: entry)

    @property
    def key(self) -> Columns:
        return self.columns[: len(KEY)]

    @property
    def provenance(self) -> Columns:
        return self.columns[len(KEY) :]

    @property
    def problem(self) -> str:
        """Canonical JSON, unless the row is damaged."""
        return str(self.columns[_PROBLEM])

    @property
    def entry(self) -> Entry | None:
        """None, with one warning, if the row is damaged."""
        if not hasattr(self, "_entry"):
            self._entry = self._read(self._row)
        return self._entry


KEY = tuple(each.name for each in dataclasses.fields(CacheKey))
PROVENANCE = tuple(each.name for each in dataclasses.fields(Provenance))
"""Columns of ``tuning_studies`` that hold the fields of the two records."""
_PROBLEM = KEY.index("problem")


def entries_of(unread: Iterable[Unread]) -> Iterator[Entry]:
    """Those that are not damaged, each read when its turn comes."""
    return (each.entry for each in unread if each.entry is not None)


def columns(record: CacheKey | Provenance) -> Columns:
    """The columns of a row that is not damaged."""
    return tuple(getattr(record, each.name) for each in dataclasses.fields(record))


def parted(key: Columns, names: Collection[str]) -> tuple[tuple[Any, ...], object]:
    """The values of a problem's fields ``names``, and all else: equal for two keys that differ in nothing else. Of a
    damaged problem no value is known.
    """
    try:
        fields: dict[str, Any] = json.loads(key[_PROBLEM])
        values = tuple([fields.pop(name, None) for name in names])
    except (ValueError, TypeError, AttributeError, RecursionError):
        return (None,) * len(names), key
    outer = [value for name, value in zip(KEY, key, strict=True) if name != "problem" and name not in names]
    return values, (repr(fields), *outer)


@dataclass(frozen=True)
class StudyRecord:
    """One tuning of one key with one provenance, running or finished."""

    id: int
    key: CacheKey
    provenance: Provenance
    seed: int
    space_size: int
    state: State
    created_at: datetime
    """UTC."""
    winner: Winner | None = None
    origin: str = ""

    @property
    def is_begun(self) -> bool:
        """True for an unfinished search. The study of a recording has no end."""
        return self.state == "running" and not self.provenance.is_recording


@dataclass(frozen=True)
class Standing:
    """A study that none has superseded, as others see it who would tune its problem."""

    study_id: int
    is_finished: bool
    is_verified: bool
    """Finished without a search, for which it is still to be tuned."""
    held: Held | None
    """The lease of the process that tunes it."""
    failure: str
    """Host and reason of a fleet's last attempt that found no winner."""


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Differences:
    names = [*ours, *(name for name in theirs if name not in ours)]
    pairs = {name: (_shown(ours, name), _shown(theirs, name)) for name in names}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}


def _shown(values: Mapping[str, Any], name: str) -> str:
    return _text(values[name]) if name in values else ABSENT


def fields_text(fields: Mapping[str, Any]) -> str:
    """A problem's fields in one line, a long one shortened."""
    return " ".join(f"{name}={shortened(_text(value))}" for name, value in fields.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
