"""A problem: one instance of a workload, its dimensions, dtype and world size, frozen and checked."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, Self, SupportsFloat

from autotune.dtypes import DTYPES, OPERAND_TYPES
from autotune.errors import InvalidProblem
from autotune.text import did_you_mean, shortened

OTHER_NAMES = {alias: name for name, each in OPERAND_TYPES.items() for alias in each.aliases}
"""Other names of element types that people use."""

USUAL_SIZES = {"m": 1024, "tokens": 128, "batch": 32, "kv_len": 4096}
"""Sizes for which an invariant config is chosen untuned: one of the call's own would not be the same for all calls."""

LARGEST_DIMENSION = 2**24
"""Beyond any layer in use; a typing error does not allocate terabytes."""


def size(help: str, *, default: Any = dataclasses.MISSING, least: int = 1) -> Any:
    """A dataclass field for a dimension: an integer from ``least``, 8.0 too; required unless it has a default."""
    return dataclasses.field(default=default, metadata={"help": help, "kind": "size", "least": least})


def number(help: str, default: float) -> Any:
    """A dataclass field for a finite number that is not negative."""
    return dataclasses.field(default=default, metadata={"help": help, "kind": "number"})


def choice(help: str, allowed: tuple[str, ...], default: str) -> Any:
    """A dataclass field for one of a few words."""
    return dataclasses.field(default=default, metadata={"help": help, "kind": "choice", "allowed": allowed})


def flag(help: str, default: bool = False) -> Any:
    """A dataclass field that is true or false."""
    return dataclasses.field(default=default, metadata={"help": help, "kind": "flag"})


def invariant() -> Any:
    """The dataclass field of problems whose rows can be computed alike in batches of every size, see
    ``Problem.one_row``. Stored problems are without it unless it is true.
    """
    help = "one config, and one order of every sum, for any number of rows: a row's bits do not depend on its batch"
    return dataclasses.field(default=False, metadata={"help": help, "kind": "flag", "stored": "if true"})


def written(help: str, read: Callable[[str], str], *, metavar: str, default: str = "") -> Any:
    """A dataclass field for a text. ``read`` makes the field's value from a word of the command line, ``metavar``, or
    of a fleet's list; it keeps a value as it is.
    """
    told = {"help": help, "kind": "written", "read": read, "metavar": metavar}
    return dataclasses.field(default=default, metadata=told)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Base of all problems. A subclass adds fields made with the functions above: ``size``, ``choice`` and so on.

    The command line's options, the checks and the cache key all come from these fields.
    """

    workload: ClassVar[str]
    free: ClassVar[tuple[str, ...]] = ()
    """Dimensions along which a look-up serves ranges, and takes the nearest tuned problem's config beyond them."""
    computes: ClassVar[str] = ""
    """What a call computes, in some six words; if empty, help pages show the docstring's first line."""
    of_inputs: ClassVar[tuple[str, ...]] = ()
    """Fields that say which inputs a config is tuned with, and change no result."""

    one_row: ClassVar[str] = ""
    """The dimension along which results are independent of each other, of a problem with the field ``invariant``."""
    sums: ClassVar[bool] = True
    """False for an operation that only moves data: whatever its config, it gives the same bits."""

    of_default: ClassVar[Mapping[str, Any]] = {}
    """Values that the workload's default problem has on every machine, where they are not the fields' own defaults."""

    dtype: str = choice("element type of inputs and output; accumulation is fp32", tuple(DTYPES), "bf16")
    world_size: int = size("ranks, one per GPU")

    def __post_init__(self) -> None:
        """Check every field by its declaration, then the problem's own ``check``."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, _checked(field.name, value, field.metadata))
        self.check()

    def check(self) -> None:
        """Raise InvalidProblem if the dimensions do not fit each other."""

    def check_sharded(self, *names: str, note: str = "") -> None:
        """Raise InvalidProblem, with the nearest valid values, if the ranks do not divide a dimension; ``note`` follows
        the reason.
        """
        for name in names:
            value, world = getattr(self, name), self.world_size
            if value % world:
                low = value // world * world
                nearest = f"{low} or {low + world}" if low else f"{world}"
                raise InvalidProblem(
                    f"{name}={value} is sharded over world_size={world}, which must divide it{note}; use {nearest}"
                )

    def other_routings(self) -> dict[str, Self]:
        """Problems that differ in ``of_inputs`` alone, by name: a mixture of experts under other routings, flash decode
        with other lengths. A winner is checked and timed under these, too.
        """
        return {}

    @property
    def is_invariant(self) -> bool:
        """True if a row's bits must not depend on the other rows of the call, nor on their number."""
        return bool(getattr(self, "invariant", False))

    def as_varying(self) -> Self:
        """This problem, with the library's ways valid, too."""
        return self._with({"invariant": False}) if self.is_invariant else self

    @property
    def batch_rows(self) -> int:
        """The size along ``one_row``."""
        return int(getattr(self, self.one_row))

    def with_rows(self, rows: int) -> Self:
        """This problem with ``rows`` along ``one_row``. Raises InvalidProblem where the ranks cannot share them."""
        return self._with({self.one_row: rows})

    @property
    def least_rows(self) -> int:
        """The fewest rows of a call, of which each number of rows is a multiple: one for each rank that shares them."""
        try:
            self.with_rows(1)
        except InvalidProblem:
            return self.world_size
        return 1

    def sizes(self) -> list[Self]:
        """The sizes for which an invariant config is tuned, the largest first: this one, a quarter of it, and so on."""
        least, rows = self.least_rows, [self.batch_rows]
        while rows[-1] > least:
            rows.append(max(least, rows[-1] // 4 // least * least))
        return [self.with_rows(each) for each in rows]

    def family(self) -> Self:
        """The one problem that stands for all that an invariant config serves: of usual sizes, with usual inputs."""
        ranks = self.world_size
        sizes = {name: -(-USUAL_SIZES.get(name, 1024) // ranks) * ranks for name in self.free}
        usual = {field.name: field.default for field in dataclasses.fields(self) if field.name in self.of_inputs}
        return self._with({**sizes, **usual})

    def _with(self, fields: dict[str, Any]) -> Self:
        return dataclasses.replace(self, **fields)

    @property
    def element_size(self) -> int:
        return OPERAND_TYPES[self.dtype].size

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def in_order(cls) -> list[dataclasses.Field[Any]]:
        """The fields as people see them: what has to be given, the ranks after the sizes, then the rest as declared."""
        optional = {field.name: field.default is not dataclasses.MISSING for field in dataclasses.fields(cls)}
        return sorted(dataclasses.fields(cls), key=lambda field: (optional[field.name], field.name == "world_size"))

    @classmethod
    def completed(cls, given: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a problem of which some are given: the others are those of the default problem."""
        return {**default, **given}

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces. Part of the cache key."""
        left_out = {each.name for each in dataclasses.fields(self) if "stored" in each.metadata}
        told = {name: value for name, value in self.as_dict().items() if value or name not in left_out}
        return json.dumps(told, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build and check a problem; raises InvalidProblem that names an unknown or missing field."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            raise InvalidProblem(f"{cls.workload} has no field {', '.join(unknown)}; it has {', '.join(fields)}")
        missing = [
            name for name, field in fields.items() if name not in values and field.default is dataclasses.MISSING
        ]
        if missing:
            raise InvalidProblem(f"{cls.workload} needs {', '.join(missing)}")
        return cls(**values)

    def __str__(self) -> str:
        """The fields that do not hold their defaults, sizes first."""
        told = {field.name: getattr(self, field.name) for field in self.in_order()}
        defaults = {field.name: field.default for field in self.in_order()}
        return " ".join(f"{name}={shortened(str(value))}" for name, value in told.items() if value != defaults[name])


def whole(value: Any) -> int | None:
    """A whole number, also one of NumPy's or torch's, or written as 50.0, as models' configs have it; None for all
    else.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def _real(value: Any) -> float | None:
    """A finite number that is not negative, NumPy's and torch's included; None for all else."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return None
    try:
        real = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # tensors, huge integers
        return None
    return real if 0 <= real < math.inf else None


def _checked(name: str, value: Any, metadata: Mapping[str, Any]) -> Any:
    """A field's value by its declaration: of a number, Python's own."""
    kind = metadata.get("kind")
    if kind is None:
        raise InvalidProblem(
            f"{name} is a plain field; declare it with size(), number(), choice(), flag() or written() from "
            "autotune.problem"
        )
    if kind == "size":
        least, number = metadata["least"], whole(value)
        if number is None or not least <= number <= LARGEST_DIMENSION:
            raise InvalidProblem(f"{name}={value!r}: must be an integer from {least} to {LARGEST_DIMENSION}")
        return number
    if kind == "number":
        real = _real(value)
        if real is None:
            raise InvalidProblem(f"{name}={value!r}: must be a finite number, not negative")
        return real
    if kind == "choice":
        if value not in metadata["allowed"]:
            meant = did_you_mean(value, metadata["allowed"], OTHER_NAMES)
            raise InvalidProblem(f"{name}={value!r}: allowed: {', '.join(metadata['allowed'])}{meant}")
    elif kind == "written":
        if not isinstance(value, str):
            raise InvalidProblem(f"{name}={value!r}: must be a text")
    elif not isinstance(value, bool):
        raise InvalidProblem(f"{name}={value!r}: must be true or false")
    return value
