"""A joint space is the union of what its modes declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from autotune.search_spaces import Constraint, Space
from autotune.search_spaces.joint import flag, joint_space, merged, number, word


def _even(task: Any, tile: int) -> bool:
    return tile % 2 == 0


def _never(task: Any, mode: str) -> bool:
    return False


EVEN = Constraint("even", ("tile",), _even, "odd")
NEVER = Constraint("never", ("mode",), _never, "never")
TILE: Any = number(1, 2, 4, help="rows", say="{tile:row}")


@dataclass(frozen=True, kw_only=True)
class Push:
    tile: int = TILE
    late: bool = flag(help="later", say="one tile later")

    title: ClassVar[str] = "pushed"
    constraints: ClassVar = (EVEN,)


@dataclass(frozen=True, kw_only=True)
class Pull:
    order: str = word("up", "down", help="order", say={"up": "", "down": "backwards"})
    tile: int = TILE

    title: ClassVar[str] = "pulled"
    constraints: ClassVar = (NEVER, EVEN)


@dataclass(frozen=True, kw_only=True)
class Library:
    title: ClassVar[str] = "library"
    constraints: ClassVar = ()


def space(**modes: Any) -> Space:
    return joint_space(modes, help="strategy")


def test_what_several_modes_have_stands_once_and_belongs_to_all_of_them() -> None:
    found = space(bsp=Library, push=Push, pull=Pull)
    modes = {name: [mode for mode in found.modes if d.belongs_to(mode)] for name, d in found.dimensions.items()}
    assert modes == {"mode": ["bsp", "push", "pull"], "order": ["pull"], "tile": ["push", "pull"], "late": ["push"]}
    assert [(each.name, each.modes) for each in found.constraints] == [("never", ("pull",)), ("even", ())]
    config = {"mode": "push", "tile": 1, "late": True}
    assert [found.dimensions[name].told(config) for name in config] == ["pushed", "1 row", "one tile later"]


def test_modes_that_differ_under_one_name_are_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wide(Library):
        tile: int = number(1, 2, help="rows", say="")

    @dataclass(frozen=True, kw_only=True)
    class Mistyped(Library):
        tile: int = word("a", help="rows", say="")

    with pytest.raises(ValueError, match="tile"):
        space(push=Push, wide=Wide)
    with pytest.raises(TypeError, match="tile"):
        space(mistyped=Mistyped)


def test_the_order_is_one_that_each_mode_agrees_with() -> None:
    assert [*merged([["a", "c"], ["b", "c", "d"], ["d"]])] == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="differently"):
        list(merged([["a", "b"], ["b", "a"]]))


def test_modes_may_be_laid_out_in_another_order_than_they_come() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Late(Library):
        late: bool = flag(help="later", say="one tile later")

    modes = {"late": Late, "pull": Pull}
    found = joint_space(modes, help="strategy", order=["pull", "late"])
    assert [*space(**modes).dimensions] == ["mode", "late", "order", "tile"]
    assert [*found.dimensions] == ["mode", "order", "tile", "late"] and found.modes == ("late", "pull")
