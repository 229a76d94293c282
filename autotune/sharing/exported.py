"""The file of tuned configs: its schema, writing, and reading with every mistake named.

Made for review: sorted, one line per value, no time of writing. Two exports of the same entries are the same bytes, and
a diff shows the changes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Roofline, Routed, Winner
from autotune.db.records import LONGEST, SHORTEST
from autotune.errors import InputError
from autotune.outcome import Latency
from autotune.text import HIDDEN, json_text, named_once, visible

LOG = logging.getLogger("autotune")

T = TypeVar("T")

FORMAT: Final = "iris-autotune/configs"
VERSION: Final = 1

YEARS = (2000, 2999)
"""First and last plausible year of tuning."""

MOST_SHOWN = 10
"""Mistakes in one message at most."""


def _storable(value: T) -> T:
    """Raise ValueError for text with hidden characters and for integers that no column holds."""
    if isinstance(value, str) and (found := HIDDEN.search(value)) is not None:
        raise ValueError(f"holds {visible(found[0])}, a hidden character")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("is not a 64-bit integer")
    return value


def _plain(value: Any) -> Any:
    """Raise ValueError for what no key argument is."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError("must be text, a number, a flag, null or a list of these")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return _storable(value)


def _plausible(moment: datetime) -> datetime:
    """Raise ValueError for an implausible date."""
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise ValueError(f"year {moment.year} is not between {YEARS[0]} and {YEARS[1]}")
    return moment


PLAIN = ("string", "integer", "number", "boolean", "null", "array")

Plain = Annotated[Any, AfterValidator(_plain), WithJsonSchema({"type": list(PLAIN)})]
"""A decorated kernel's key arguments may be any of these; a workload's problem checks its own fields."""

Word = Annotated[str, Field(max_length=1000), AfterValidator(_storable)]
Text = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_storable)]
Value = Annotated[str | int | bool, AfterValidator(_storable)]
Time = Annotated[float, Field(ge=SHORTEST, le=LONGEST, description="microseconds")]
Part = Annotated[float, Field(ge=0, le=LONGEST, description="microseconds")]
Rate = Annotated[float, Field(gt=0, le=LONGEST)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Moment = Annotated[AwareDatetime, AfterValidator(_plausible)]


class Block(BaseModel):
    """Base of all blocks: no unknown fields, no conversion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LatencyBlock(Block):
    """Latency of the slowest rank, in microseconds."""

    median: Time
    low: Annotated[Time, Field(description="20th percentile over the iterations")]
    high: Annotated[Time, Field(description="80th percentile over the iterations")]
    skew: Annotated[
        float, Field(ge=0, le=LONGEST, description="slowest minus fastest rank, median over the iterations")
    ]
    iterations: Annotated[int, Field(ge=1, lt=2**63)]
    by_rank: Annotated[tuple[Time, ...], Field(description="each rank's own median, or none")]
    host: Annotated[Time | None, Field(description="to enqueue a call, slowest rank")] = None
    isolated: Annotated[Time | None, Field(description="one call on an idle device")] = None
    rounds: Annotated[tuple[Time, ...], Field(description="medians of the finals' rounds, in order")] = ()
    host_rounds: tuple[Time, ...] = ()
    isolated_rounds: tuple[Time, ...] = ()
    host_door: Annotated[Part | None, Field(description="of host: an operator's own, of a winner alone")] = None
    isolated_door: Annotated[Part | None, Field(description="of isolated, likewise")] = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        self.latency()  # raises ValueError for rounds that do not go together
        return self

    @classmethod
    def of(cls, latency: Latency) -> Self:
        return cls(**dataclasses.asdict(latency))

    def latency(self) -> Latency:
        return Latency(**self.model_dump())


class RooflineBlock(Block):
    """Lower bounds on the problem's time, from the device's measured rates."""

    rates: Annotated[dict[Text, Rate], Field(description="flops, or bytes, per microsecond")]
    times: Annotated[
        dict[Text, Annotated[float, Field(ge=0, le=LONGEST)]],
        Field(min_length=1, description="microseconds, by resource; of a small problem less than a nanosecond, or 0"),
    ]


class RoutedBlock(Block):
    """The config, and the baseline that was the fastest in the finals, under another routing."""

    latency: LatencyBlock
    baselines: dict[Text, LatencyBlock]


class ProvenanceBlock(Block):
    """The software of the measurement; an empty version is unknown."""

    source_hash: Text
    space: Text
    triton: Word
    iris: Word
    torch: Word
    driver: Word


class EntryBlock(Block):
    """A tuned config: its problem and machine, its values, its latency and those of its baselines."""

    workload: Text
    problem: Annotated[dict[Text, Plain], Field(description="the problem's fields by name")]
    world_size: Annotated[int, Field(ge=1, lt=2**31)]
    device: Text
    arch: Text
    interconnect: Text
    regime: Annotated[
        Literal["graph", "pipelined", "isolated"], Field(description="in which the config is the fastest")
    ]
    config: Annotated[dict[Text, Value], Field(min_length=1, description="the dimensions by name")]
    latency: LatencyBlock
    baselines: dict[Text, LatencyBlock]
    limits: dict[Text, LatencyBlock]
    roofline: RooflineBlock | None = None
    routings: Annotated[
        dict[Text, RoutedBlock], Field(description="of a mixture of experts: under other routings, by name")
    ] = {}
    provenance: ProvenanceBlock
    trials: Annotated[Count, Field(description="evaluations behind it")]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    space_size: Count
    finished_at: Moment
    origin: Annotated[
        Word, Field(description="FILE:NAME of a decorated kernel or of a workload of one's own; never loaded")
    ] = ""

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        """Only a decorated kernel's key arguments may be null or lists."""
        for name, value in self.problem.items():
            if "world_size" in self.problem and not isinstance(value, str | int | float):
                raise ValueError(f"problem.{name} is {json.dumps(value)[:60]}; expected text, a number or a flag")
        return self

    @model_validator(mode="after")
    def _of_its_ranks(self) -> Self:
        parts = {"latency": self.latency, **self.baselines, **self.limits}
        for routing, routed in self.routings.items():
            parts[f"routings.{routing}.latency"] = routed.latency
            parts |= {f"routings.{routing}.{name}": block for name, block in routed.baselines.items()}
        for name, block in parts.items():
            if len(block.by_rank) not in (0, self.world_size):
                raise ValueError(f"{name}.by_rank has {len(block.by_rank)} times, world_size is {self.world_size}")
        return self

    @classmethod
    def of(cls, entry: Entry) -> Self:
        key, winner = entry.key, entry.winner
        return cls(
            workload=key.workload,
            problem=json.loads(key.problem),
            world_size=key.world_size,
            device=key.device,
            arch=key.arch,
            interconnect=key.interconnect,
            regime=key.regime,  # type: ignore[arg-type]
            config=dict(sorted(winner.config.items())),
            latency=LatencyBlock.of(winner.latency),
            baselines=_blocks(winner.baselines),
            limits=_blocks(winner.limits),
            roofline=RooflineBlock(**dataclasses.asdict(winner.roofline)) if winner.roofline is not None else None,
            routings={
                name: RoutedBlock(latency=LatencyBlock.of(each.latency), baselines=_blocks(each.baselines))
                for name, each in sorted(winner.routings.items())
            },
            provenance=ProvenanceBlock(**dataclasses.asdict(entry.provenance)),
            trials=entry.trials,
            seed=entry.seed,
            space_size=entry.space_size,
            finished_at=entry.finished_at.astimezone(UTC),
            origin=entry.origin,
        )

    def entry(self) -> Entry:
        """The entry; the store gives it a study id."""
        key = CacheKey(
            workload=self.workload,
            problem=json.dumps(self.problem, sort_keys=True, separators=(",", ":")),
            world_size=self.world_size,
            device=self.device,
            arch=self.arch,
            interconnect=self.interconnect,
            regime=self.regime,
        )
        winner = Winner(
            config=Config(self.config),
            latency=self.latency.latency(),
            baselines={name: block.latency() for name, block in self.baselines.items()},
            limits={name: block.latency() for name, block in self.limits.items()},
            roofline=Roofline(**self.roofline.model_dump()) if self.roofline is not None else None,
            routings={
                name: Routed(block.latency.latency(), {each: b.latency() for each, b in block.baselines.items()})
                for name, block in self.routings.items()
            },
        )
        provenance = Provenance(**self.provenance.model_dump())
        return Entry(
            key, provenance, winner, study_id=0, finished_at=self.finished_at.astimezone(UTC), trials=self.trials,
            seed=self.seed, space_size=self.space_size, origin=self.origin,
        )  # fmt: skip


class ConfigsFile(Block):
    """Tuned configs of iris-autotune."""

    format: Literal["iris-autotune/configs"]
    version: Literal[1]
    entries: list[EntryBlock]


def write(entries: Iterable[Entry]) -> str:
    """The file's text; it does not depend on the order of the entries.

    An entry that a reader would refuse is left out, with a warning.
    """
    blocks = [block for entry in sorted(entries, key=_order) if (block := _block(entry)) is not None]
    values = ConfigsFile(format=FORMAT, version=VERSION, entries=blocks).model_dump(mode="json")
    return json_text(values) + "\n"


def read(text: str) -> list[Entry]:
    """The entries in a file's text. Raises InputError that names each mistake's entry and field."""
    values = _loaded(text)
    try:
        file = ConfigsFile.model_validate_json(text)
    except ValidationError as error:
        mistakes = [_mistake(values, each["loc"], each["msg"], each["input"]) for each in error.errors()]
        more = [f"and {len(mistakes) - MOST_SHOWN} more"] if len(mistakes) > MOST_SHOWN else []
        lines = ["not a valid file of configs:", *mistakes[:MOST_SHOWN], *more]
        raise InputError("\n".join(lines)) from error
    entries = [block.entry() for block in file.entries]
    seen: dict[tuple[CacheKey, Provenance], int] = {}
    for number, entry in enumerate(entries, 1):
        first = seen.setdefault((entry.key, entry.provenance), number)
        if first != number:
            raise InputError(f"entries {first} and {number} have the same problem, machine and provenance; keep one")
    return entries


def _block(entry: Entry) -> EntryBlock | None:
    try:
        return EntryBlock.of(entry)
    except ValidationError as error:
        first = error.errors()[0]
        told = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
        LOG.warning("study %d is left out: %s", entry.study_id, visible(told))
        return None


def _loaded(text: str) -> Mapping[str, Any]:
    """The JSON object, format and version checked. Raises InputError."""
    try:
        values = json.loads(text, object_pairs_hook=named_once)
    except InputError as error:
        raise InputError(f"an object in it {error}; keep one") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}; use a file written by tune export") from error
    if isinstance(values, dict) and values and all(name.isdigit() for name in values if name != "triton_version"):
        raise InputError(
            "configs by size, as vLLM keeps them, have no latencies and are no results; a decorated kernel takes them "
            "as candidates or defaults: autotune.configs_by_size(FILE)"
        )
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(
            f'not a file of configs: expected an object with "format": "{FORMAT}", as tune export writes it'
        )
    if values.get("version") != VERSION:
        raise InputError(
            f"version {values.get('version')!r} of the format; this iris-autotune reads version {VERSION}: "
            "export again with this version"
        )
    return values


def _mistake(values: Mapping[str, Any], place: tuple[int | str, ...], said: str, got: Any) -> str:
    """``entry 2 (all_gather_gemm {"m": 4096}), latency.median: Input should be greater than 0; got -1``."""
    if not place:  # of the text as a whole: it is JSON for Python, but not for pydantic
        return said
    where = ".".join(map(str, place))
    if place[0] == "entries" and len(place) > 1 and isinstance(place[1], int):
        block, named = values["entries"][place[1]], ""
        if isinstance(block, dict):
            named = f" ({block.get('workload')} {json.dumps(block.get('problem'))[:100]})"
        where = ", ".join(filter(None, [f"entry {place[1] + 1}{named}", ".".join(map(str, place[2:]))]))
    shown = f"; got {json.dumps(got)[:60]}" if not isinstance(got, dict | list) else ""
    return f"{where}: {said}{shown}"


def _blocks(latencies: Mapping[str, Latency]) -> dict[str, LatencyBlock]:
    return {name: LatencyBlock.of(latencies[name]) for name in sorted(latencies)}


def _order(entry: Entry) -> tuple[Any, ...]:
    key = entry.key
    problem = json.loads(key.problem).items()
    fields = [(name, str(type(v)), v if isinstance(v, int | float | str) else json.dumps(v)) for name, v in problem]
    return (
        key.workload, key.device, key.arch, key.interconnect, key.world_size, fields, key.regime,
        dataclasses.astuple(entry.provenance),
    )  # fmt: skip


def schema() -> str:
    """The format as JSON Schema, as in docs/configs.schema.json."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{FORMAT.replace('/', ':')}:{VERSION}",
    }
    return json.dumps({**head, **ConfigsFile.model_json_schema()}, indent=2) + "\n"
