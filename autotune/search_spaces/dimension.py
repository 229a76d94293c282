"""A dimension of a search space: its name, its values, the modes that have it."""

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.config import Value
from autotune.text import counted

if TYPE_CHECKING:
    import optuna  # a lookup at run time checks configs against a space and must not pay for Optuna

COMPILER_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Dimensions that are Triton's own: a ``triton.Config`` takes them beside the kernel's arguments."""

Say = str | Mapping[Any, str]
"""A template over a config's values, or one per value, ``...`` standing for all others. ``{stages:stage}`` counts."""


class _Counting(string.Formatter):
    def format_field(self, value: Any, noun: str) -> str:
        return counted(value, noun) if noun else str(value)


@dataclass(frozen=True)
class Dimension:
    """One tunable knob. Ordinal dimensions are searched by the index of the value, the others as categories."""

    name: str
    values: tuple[Value, ...]
    modes: tuple[str, ...] = ()
    """The modes that have this knob; empty for all of them."""
    ordinal: bool = True
    help: str = ""
    say: Say = field(default="", compare=False)
    """Words for a value; empty where it goes without saying."""

    def __post_init__(self) -> None:
        """A dimension has at least one value and none twice."""
        if not self.values or len(set(map(repr, self.values))) != len(self.values):
            raise ValueError(f"dimension {self.name}: values {self.values} must be distinct and at least one")

    def only(self, kept: Collection[Value]) -> Dimension:
        """A copy with fewer values, in their own order; ``kept`` may come in any."""
        return dataclasses.replace(self, values=tuple(value for value in self.values if value in kept))

    def belongs_to(self, mode: str) -> bool:
        """True if configs of this mode have this dimension."""
        return not self.modes or mode in self.modes

    def holds(self, value: object) -> bool:
        """True if the value is one of this dimension's (1 is not true)."""
        return isinstance(value, (str, int)) and (type(value), value) in self._typed

    @functools.cached_property
    def _typed(self) -> frozenset[tuple[type, Value]]:
        return frozenset((type(value), value) for value in self.values)

    def told(self, config: Mapping[str, Value]) -> str:
        """The config's value in words; itself, where there are none for it."""
        value, say = config[self.name], self.say
        template = say if isinstance(say, str) else say.get(value, say.get(..., "{" + self.name + "}"))
        try:
            return _Counting().vformat(template, (), config)
        except KeyError:  # a config of another version, without a dimension that the words are about
            return f"{self.name} {value}"

    def suggest(self, trial: optuna.trial.BaseTrial) -> Value:
        """Let Optuna choose. Ordinal values go by index: measured better than categories (see docs/decisions.md)."""
        if self.ordinal and len(self.values) > 1:
            return self.values[trial.suggest_int(self.name, 0, len(self.values) - 1)]
        return self.values[trial.suggest_categorical(self.name, tuple(range(len(self.values))))]

    def distribution(self) -> optuna.distributions.BaseDistribution:
        """The distribution behind ``suggest``, for trials rebuilt from the store."""
        import optuna

        last = len(self.values) - 1
        if self.ordinal and last > 0:
            return optuna.distributions.IntDistribution(0, last)
        return optuna.distributions.CategoricalDistribution(tuple(range(last + 1)))

    def index(self, value: Value) -> int:
        return next(i for i, own in enumerate(self.values) if own == value and type(own) is type(value))

    def neighbours(self, value: Value) -> Iterator[Value]:
        """The values one step away; all other values of an unordered dimension."""
        at = self.index(value)
        for i, other in enumerate(self.values):
            if i != at and (not self.ordinal or abs(i - at) == 1):
                yield other


def choices(name: str, *values: str, modes: tuple[str, ...] = (), help: str = "", say: Say = "") -> Dimension:
    """A dimension of words without an order."""
    return Dimension(name, values, modes, ordinal=False, help=help, say=say)


def numbers(name: str, *values: int, modes: tuple[str, ...] = (), help: str = "", say: Say = "") -> Dimension:
    """A dimension of integers in rising order."""
    if list(values) != sorted(values):
        raise ValueError(f"dimension {name}: {values} must rise")
    return Dimension(name, values, modes, help=help, say=say)


def flags(name: str, modes: tuple[str, ...] = (), help: str = "") -> Dimension:
    """A dimension that is false or true."""
    return Dimension(name, (False, True), modes, ordinal=False, help=help)
