"""A joint space from modes: the fields of a mode's class are its dimensions, and the space is their union."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from autotune.search_spaces.dimension import Dimension, Say, choices, numbers
from autotune.search_spaces.space import Constraint, Space

H = TypeVar("H", bound=Hashable)

DIMENSION = "dimension"


class Declared(Protocol):
    """A mode's dataclass."""

    title: ClassVar[str]
    constraints: ClassVar[tuple[Constraint, ...]]


def number(*values: int, help: str, say: Say) -> Any:
    """A dataclass field that is a dimension of integers in rising order."""
    return _field(numbers("", *values, help=help, say=say))


def word(*values: str, help: str, say: Say) -> Any:
    """A dataclass field that is a dimension of words without an order."""
    return _field(choices("", *values, help=help, say=say))


def flag(*, help: str, say: str) -> Any:
    """A dataclass field that is a dimension, false or true; ``say`` where it is true."""
    return _field(Dimension("", (False, True), ordinal=False, help=help, say={False: "", True: say}))


def _field(dimension: Dimension) -> Any:
    return dataclasses.field(metadata={DIMENSION: dimension})


def dimensions_of(mode: type[Any]) -> tuple[Dimension, ...]:
    """The dimensions among the fields of a mode's class."""
    found = []
    for field in dataclasses.fields(mode):
        if DIMENSION in field.metadata:
            dimension: Dimension = field.metadata[DIMENSION]
            if {type(value).__name__ for value in dimension.values} != {field.type}:
                raise TypeError(f"{mode.__name__}.{field.name}: {dimension.values} are not of type {field.type}")
            found.append(dataclasses.replace(dimension, name=field.name))
    return tuple(found)


def joint_space(
    modes: Mapping[str, type[Declared]], help: str, shared: Sequence[Constraint] = (), order: Sequence[str] = ()
) -> Space:  # fmt: skip
    """The union of the modes' dimensions and constraints, after constraints ``shared`` by all.

    What several modes have is the same, and stands once; first comes what the first mode of ``order`` has. Raises
    ValueError where they differ under one name, or disagree about the order.
    """
    dimensions = {mode: dimensions_of(kind) for mode, kind in modes.items()}
    names = {mode: {d.name for d in its} for mode, its in dimensions.items()}
    union = []
    for dimension in merged([dimensions[mode] for mode in order or modes]):
        having = tuple(mode for mode in modes if dimension.name in names[mode])
        union.append(dataclasses.replace(dimension, modes=having if len(having) < len(modes) else ()))
    constraints = []
    for each in merged([kind.constraints for kind in modes.values()]):
        having = tuple(mode for mode, kind in modes.items() if each in kind.constraints)
        able = tuple(mode for mode in modes if (names[mode] | {"mode"}).issuperset(each.uses))
        constraints.append(dataclasses.replace(each, modes=having if having != able else ()))
    titles = {mode: kind.title for mode, kind in modes.items()}
    mode = Dimension("mode", tuple(modes), ordinal=False, help=help, say=titles)
    return Space(mode, *union, constraints=(*shared, *constraints))


def merged(lists: Sequence[Sequence[H]]) -> Iterator[H]:
    """Every item once, in an order that each list agrees with; otherwise as the lists come."""
    waiting = [list(each) for each in lists]
    while waiting := [each for each in waiting if each]:
        following = {item for each in waiting for item in each[1:]}
        free = next((each[0] for each in waiting if each[0] not in following), None)
        if free is None:
            raise ValueError(f"modes order these differently: {[each[0] for each in waiting]}")
        yield free
        waiting = [each[1:] if each[0] == free else each for each in waiting]
