"""The file of a recording: gzipped JSON with a column of small integers per dimension, and its checks."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from autotune import schema
from autotune.config import Config, Value
from autotune.db.records import Provenance
from autotune.errors import InputError
from autotune.files import write_whole
from autotune.machine import Machine
from autotune.outcome import Evaluation, Latency, Outcome, Part, Time
from autotune.recordings.recording import Origin, Recording
from autotune.schema import Within
from autotune.timeline import Timeline

FORMAT: Final = "iris-autotune/recording"
VERSION: Final = 1

ABSENT: Final = -1
"""In a dimension's column: the config's mode lacks the dimension."""

DIGITS = 3
"""Decimal digits of microseconds and of seconds: far below what can be measured."""

MOST_BYTES = 1 << 28
"""Limit on the unpacked size."""

T = TypeVar("T")
Index = Annotated[int, Within(ABSENT)]
Scalar = str | int | bool


@dataclass(frozen=True)
class Columns:
    """One entry per config."""

    dimensions: dict[str, list[Index]]
    """Index of the value; -1 where the mode has none."""
    outcome: list[Index]
    reason: list[Index]
    median: list[Time | None]
    low: list[Time | None]
    high: list[Time | None]
    skew: list[Part | None]
    iterations: list[int | None]
    seconds: list[float]
    """Wall time of the evaluation."""


@dataclass(frozen=True)
class RecordingFile:
    """A recorded search space of iris-autotune."""

    format: str
    version: int
    workload: str
    problem: dict[str, str | int | float | bool]
    machine: Machine
    provenance: Provenance
    recorded_at: datetime
    origin: Origin
    restriction: dict[str, list[Scalar]]
    dimensions: dict[str, list[Scalar]]
    parts: dict[str, Latency]
    outcomes: list[str]
    reasons: list[str]
    columns: Columns
    lifted: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=dict)


SHARED = tuple(each.name for each in fields(RecordingFile) if each.name in {one.name for one in fields(Recording)})
"""Fields that a recording has as they are in the file."""


def write(recording: Recording, file: Path) -> None:
    """Write the file; the same recording gives the same bytes. Raises InputError if it cannot be written."""
    outcomes = [outcome.value for outcome in Outcome]
    evaluations = list(recording.evaluations.values())
    reasons = sorted({evaluation.reason for evaluation in evaluations})
    place = {reason: i for i, reason in enumerate(reasons)}
    index = {name: {_typed(v): i for i, v in enumerate(values)} for name, values in recording.dimensions.items()}
    columns = Columns(
        dimensions={
            name: [of[_typed(config[name])] if name in config else ABSENT for config in recording.evaluations]
            for name, of in index.items()
        },
        outcome=[outcomes.index(evaluation.outcome.value) for evaluation in evaluations],
        reason=[place[evaluation.reason] for evaluation in evaluations],
        **{
            name: [None if e.latency is None else _rounded(getattr(e.latency, name)) for e in evaluations]
            for name in ("median", "low", "high", "skew")
        },
        iterations=[None if e.latency is None else e.latency.iterations for e in evaluations],
        seconds=[_rounded(evaluation.seconds.get("total", 0.0)) for evaluation in evaluations],
    )
    content = RecordingFile(
        format=FORMAT, version=VERSION, outcomes=outcomes, reasons=reasons, columns=columns,
        **{name: getattr(recording, name) for name in SHARED},
    )  # fmt: skip
    write_whole(file, gzip.compress(json.dumps(schema.write(content)).encode(), mtime=0))


def read(file: Path) -> Recording:
    """Read and check a file; raises InputError that names the mistake."""
    values = _loaded(file)
    try:
        return _recording(schema.read(RecordingFile, values))
    except schema.Mistakes as error:
        raise InputError(f"recording {file}: {error.found[0]}; record it again") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"recording {file}: {error}; record it again") from error


def _loaded(file: Path) -> dict[str, Any]:
    """The JSON object, format and version checked."""
    try:
        with gzip.open(file) as packed:
            text = packed.read(MOST_BYTES + 1)
        values = json.loads(text) if len(text) <= MOST_BYTES else None
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise InputError(f"recording {file}: {error}; use a whole file that tune record wrote") from error
    except OSError as error:
        raise InputError(f"recording {file}: {error.strerror}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f'recording {file}: expected an object with "format": "{FORMAT}", as tune record writes it')
    if values.get("version") != VERSION:
        raise InputError(
            f"recording {file}: version {values.get('version')!r} of the format; this iris-autotune reads version "
            f"{VERSION}: record again with this one"
        )
    return values


def _check(content: RecordingFile) -> None:
    """Raise ValueError for what the types of the fields let pass, and a replay would stumble over."""
    arch = content.machine.arch
    if content.machine.kind == "cuda" and not arch.removeprefix("sm_").isdecimal():
        raise ValueError(f"machine.arch {arch!r}: expected sm_ and a number")
    for name in ("compute_units", "shared_memory", "warp_size"):
        if getattr(content.machine, name) < 1:
            raise ValueError(f"machine.{name} {getattr(content.machine, name)}: expected 1 or more")
    unknown = sorted(content.restriction.keys() - content.dimensions.keys())
    if unknown:
        raise ValueError(f"restriction of {', '.join(unknown)}; dimensions: {', '.join(content.dimensions)}")
    if not any(content.columns.median):
        raise ValueError("no config that was measured")


def _recording(content: RecordingFile) -> Recording:
    _check(content)
    columns = content.columns
    size = len(columns.outcome)
    lengths = {name: len(column) for name, column in columns.dimensions.items()}
    lengths |= {name: len(getattr(columns, name)) for name in vars(columns) if name != "dimensions"}
    uneven = sorted(name for name, length in lengths.items() if length != size)
    if uneven or set(columns.dimensions) != set(content.dimensions):
        raise ValueError(f"columns that do not fit each other: {', '.join(uneven) or 'dimensions'}")
    evaluations: dict[Config, Evaluation] = {}
    for row in range(size):
        config = Config(
            {
                name: _at(content.dimensions[name], column[row], name)
                for name, column in columns.dimensions.items()
                if column[row] != ABSENT
            }
        )
        if config in evaluations:
            raise ValueError(f"row {row} has a config that an earlier row has: {config.to_json()}")
        evaluations[config] = _evaluation(content, row)
    return Recording(evaluations=evaluations, **{name: getattr(content, name) for name in SHARED})


def _evaluation(content: RecordingFile, row: int) -> Evaluation:
    columns = content.columns
    outcome = Outcome(_at(content.outcomes, columns.outcome[row], "outcome"))
    names = ("median", "low", "high", "skew", "iterations")
    values = {name: getattr(columns, name)[row] for name in names}
    missing = [name for name, value in values.items() if value is None]
    if 0 < len(missing) < len(names):
        raise ValueError(f"row {row} lacks {', '.join(missing)}")
    latency = None if missing else Latency(**values)
    reason = _at(content.reasons, columns.reason[row], "reason")
    return Evaluation(outcome, reason, latency, seconds={"total": columns.seconds[row]})


def _at(values: Sequence[T], index: int, name: str) -> T:
    if not 0 <= index < len(values):
        raise ValueError(f"{name}: index {index}; there are {len(values)} values")
    return values[index]


def _typed(value: Value) -> tuple[type, Value]:
    """Distinguishes 1 from true."""
    return type(value), value


def _rounded(value: float) -> float:
    return max(round(value, DIGITS), 0.0)
