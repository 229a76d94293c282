"""A space says which configs are valid, why others are not, and how many there are."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from fakes import LAPTOP

from autotune.config import Config
from autotune.errors import InvalidConfig, InvalidProblem
from autotune.machine import H100
from autotune.search_spaces import Constraint, Space, Task, choices, flags, numbers
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")


def problem(**fields: Any) -> Any:
    return FOUND.problem_type(**{"m": 4096, "n": 28672, "k": 8192, "world_size": 4, **fields})


def _even_tiles(s: Task[Any], tile: int, unit: int) -> bool:
    return unit % tile == 0


def _no_wide_on_laptops(s: Task[Any], tile: int) -> bool:
    return tile < 64 or not s.machine.is_interpreter


TOY = Space(
    choices("mode", "bsp", "push"),
    numbers("tile", 16, 32, 64, modes=("push",)),
    numbers("unit", 32, 64, 128, modes=("push",)),
    flags("tma", modes=("push",)),
    constraints=(
        Constraint("even", ("tile", "unit"), _even_tiles, "a unit holds whole tiles"),
        Constraint("narrow", ("tile",), _no_wide_on_laptops, "laptops are slow"),
    ),
)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "pull"}, "allowed: bsp, push"),
        ({}, "allowed: bsp, push"),
        ({"mode": "bsp", "tile": 16}, "mode bsp has no tile"),
        ({"mode": "push", "tile": 16, "unit": 32}, "mode push needs tma"),
        ({"mode": "push", "tile": 24, "unit": 32, "tma": True}, "tile=24: allowed: 16, 32, 64"),
        ({"mode": "push", "tile": 16, "unit": 32, "tma": 1}, "tma=1: allowed: False, True"),
        ({"mode": "push", "tile": 64, "unit": 32, "tma": True}, "even (tile=64, unit=32): a unit holds whole tiles"),
    ],
)
def test_a_violation_says_what_is_allowed(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        TOY.check(Config(values), Task(problem(), H100))
    assert said in str(caught.value)


def test_the_fingerprint_changes_with_values_and_constraints() -> None:
    dimensions = list(TOY.dimensions.values())
    same = Space(*dimensions, constraints=TOY.constraints)
    fewer = Space(*dimensions, constraints=TOY.constraints[:1])
    other_values = Space(*dimensions[:1], numbers("tile", 16, 32, modes=("push",)), *dimensions[2:])
    assert same.fingerprint() == TOY.fingerprint()
    even, narrow = TOY.constraints
    of_a_mode = Space(*dimensions, constraints=(even, dataclasses.replace(narrow, modes=("push",))))
    *most, last = dimensions
    changes: list[dict[str, Any]] = [{"ordinal": not last.ordinal}, {"modes": ()}, {"name": "tail"}]
    others = [Space(*most, dataclasses.replace(last, **each), constraints=TOY.constraints) for each in changes]
    for modes in (("push", "bsp"), ("bsp", "push", "teleport")):
        others.append(Space(choices("mode", *modes), *dimensions[1:], constraints=TOY.constraints))
    assert len({each.fingerprint() for each in (TOY, fewer, other_values, of_a_mode, *others)}) == 4 + len(others)
    reworded = [dataclasses.replace(each, reason="in other words") for each in TOY.constraints]
    assert Space(*dimensions, constraints=tuple(reworded)).fingerprint() == TOY.fingerprint()


def test_a_config_of_a_space_has_all_dimensions_of_its_mode_and_may_break_a_constraint() -> None:
    config = Config({"mode": "push", "tile": 64, "unit": 32, "tma": False})
    assert TOY.holds(config) and TOY.violation(config, Task(problem(), H100)) is not None
    few = Config({"mode": "push", "tile": 64})
    for other in (few, config.replace(tile=24), Config({"mode": "pull"}), Config({"mode": "bsp", "tile": 16})):
        assert not TOY.holds(other)
    assert TOY.of_parameters(TOY.parameters(config)) == config
    assert TOY.of_parameters({**TOY.parameters(few)}) is None and TOY.of_parameters({"mode": 0, "tile": 1}) is None


def test_some_configs_are_valid_each_once_in_their_order() -> None:
    small, large = (Config({"mode": "push", "tile": tile, "unit": 64, "tma": False}) for tile in (16, 64))
    invalid, bsp = large.replace(unit=32), Config({"mode": "bsp"})
    given = [large, invalid, bsp, large, small, bsp]
    assert list(TOY.valid(given, Task(problem(), H100))) == [large, bsp, small]
    assert list(TOY.valid(given, Task(problem(), LAPTOP))) == [bsp, small]
    assert TOY.first_valid([invalid, small, bsp], Task(problem(), H100)) == small
    assert TOY.first_valid([invalid], Task(problem(), H100)) is None


def test_a_config_is_ordered_as_the_space_is_and_keeps_what_the_space_lacks() -> None:
    mixed = Config({"other": 1, "unit": 64, "tma": False, "mode": "push", "tile": 16})
    assert list(TOY.ordered(mixed)) == ["mode", "tile", "unit", "tma", "other"]


def test_a_constraint_is_lifted_by_its_name_and_the_others_hold() -> None:
    lifted = TOY.restricted({"tile": [64, 32]}, lifted=["narrow"])
    assert [constraint.name for constraint in lifted.constraints] == ["even"]
    assert lifted.dimensions["tile"].values == (32, 64)


def test_a_remembering_space_says_what_the_space_says() -> None:
    for machine in (H100, LAPTOP):
        memoized = TOY.memoized(Task(problem(), machine))
        for tile, unit in itertools.product((16, 32, 64), (32, 64, 128)):
            config = Config({"mode": "push", "tile": tile, "unit": unit, "tma": True})
            assert memoized(config) is TOY.broken(config, Task(problem(), machine))


def test_a_problem_is_refused_only_where_no_mode_is_left() -> None:
    def space(*alive: str) -> Space:
        refused = Constraint("alive", ("mode",), lambda s, mode: mode in alive, "the machine lacks it")
        return Space(choices("mode", "bsp", "push"), constraints=(refused,))

    space("push").check_problem(Task(problem(), H100))
    with pytest.raises(InvalidProblem, match="the machine lacks it"):
        space().check_problem(Task(problem(), H100))
