"""A space says which configs are valid and why others are not; what is derived from it; what is joined to one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
from edges import sampled
from every_mode import whole
from fakes import LAPTOP

from autotune.config import Config
from autotune.errors import InvalidConfig, InvalidProblem
from autotune.machine import H100, MI300X, Machine
from autotune.search_spaces import Constraint, Space, Task, choices, flags, numbers
from autotune.search_spaces.dimension import Dimension
from autotune.search_spaces.joint import flag, joint_space, merged, number, word
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
PROBLEM = FOUND.problem_type(m=4096, n=28672, k=8192, world_size=4)
TASK = Task(PROBLEM, H100)
SMALL = FOUND.problem_type(m=16, n=64, k=32, world_size=2)


def _even_tiles(s: Task[Any], tile: int, unit: int) -> bool:
    return unit % tile == 0


def _no_wide_on_laptops(s: Task[Any], tile: int) -> bool:
    return tile < 64 or not s.machine.is_interpreter


def _never(s: Task[Any], speed: int) -> bool:
    return False


TOY = Space(
    choices("mode", "bsp", "push", "warp"),
    numbers("tile", 16, 32, 64, modes=("push",)),
    numbers("unit", 32, 48, 64, 128, modes=("push",)),
    numbers("speed", 1, 2, modes=("warp",)),
    flags("tma", modes=("push", "warp")),
    constraints=(
        Constraint("even", ("tile", "unit"), _even_tiles, "a unit holds whole tiles"),
        Constraint("narrow", ("tile",), _no_wide_on_laptops, "laptops are slow"),
        Constraint("never", ("speed",), _never, "nothing is that fast"),
    ),
)
"""Three modes: one without knobs, one with parts that share no constraint, one that no constraint lets live."""
LAPTOP_TASK = Task(PROBLEM, LAPTOP)


def product(space: Space) -> Iterator[Config]:
    for mode in space.modes:
        dimensions = [d for d in space.dimensions_of(mode) if d.name != "mode"]
        for values in itertools.product(*(d.values for d in dimensions)):
            names = (d.name for d in dimensions)
            yield Config({"mode": mode, **dict(zip(names, values, strict=True))})


def valid_of(space: Space, task: Task[Any]) -> set[Config]:
    return {config for config in product(space) if space.violation(config, task) is None}


def test_a_count_beyond_64_bits_is_exact() -> None:
    wide = [numbers(f"d{number}", *range(256)) for number in range(9)]
    odd = Constraint("odd", ("d0", "d1"), lambda s, d0, d1: (d0 + d1) % 2 == 1, "the sum is odd")
    assert Space(choices("mode", "push"), *wide, constraints=(odd,)).size(TASK) == 2**71


@pytest.mark.parametrize(
    ("task", "mode"),
    [whole(Task(SMALL, LAPTOP), "pull"), whole(Task(SMALL, MI300X), "pull"), (TASK, "copy_engine")],
    ids=["laptop", "mi300x", "h100"],
)
def test_the_real_space_counts_what_it_enumerates(task: Task[Any], mode: str) -> None:
    space = Space(
        choices("mode", mode),
        *(d for d in FOUND.space.dimensions_of(mode) if d.name != "mode"),
        constraints=tuple(
            c for c in FOUND.space.constraints if {d.name for d in FOUND.space.dimensions_of(mode)} >= set(c.uses)
        ),
        known_modes=FOUND.space.modes,
    )
    enumerated = set(FOUND.space.enumerate(task, mode))
    assert enumerated and enumerated == valid_of(space, task)
    assert space.size(task) == len(enumerated)


def test_narrowing_drops_dead_values_and_dead_modes_and_no_config() -> None:
    valid = valid_of(TOY, LAPTOP_TASK)
    assert set(TOY.enumerate(LAPTOP_TASK)) == valid and TOY.size(LAPTOP_TASK) == len(valid)
    narrowed = TOY.narrowed(LAPTOP_TASK)
    assert narrowed.modes == ("bsp", "push")
    assert "speed" not in narrowed.dimensions and [c.name for c in narrowed.constraints] == ["even", "narrow"]
    assert narrowed.dimensions["tile"].values == (16, 32)
    assert set(narrowed.enumerate(LAPTOP_TASK)) == valid
    assert narrowed.size(LAPTOP_TASK) == len(valid)


@pytest.mark.parametrize("machine", [H100, MI300X, LAPTOP], ids=lambda machine: machine.arch)
def test_narrowing_the_real_space_keeps_every_valid_config(machine: Machine) -> None:
    for problem in (PROBLEM, SMALL, FOUND.problem_type(m=1, n=8 * 360, k=2880, layout="k", world_size=8)):
        narrowed = FOUND.space.narrowed(Task(problem, machine))
        assert narrowed.size(Task(problem, machine)) == FOUND.space.size(Task(problem, machine))
        for config in sampled(FOUND.space, Task(problem, machine), 40):
            assert narrowed.violation(config, Task(problem, machine)) is None, config


@pytest.mark.parametrize("machine", [H100, MI300X, LAPTOP], ids=lambda machine: machine.arch)
def test_neighbours_of_the_real_space_are_valid_and_one_step_away(machine: Machine) -> None:
    space = FOUND.space
    for config in sampled(space, Task(PROBLEM, machine), 40):
        for other in space.neighbours(config, Task(PROBLEM, machine)):
            assert space.violation(other, Task(PROBLEM, machine)) is None
            (changed,) = [name for name in config if config[name] != other[name]]
            dimension = space.dimensions[changed]
            steps = abs(dimension.index(config[changed]) - dimension.index(other[changed]))
            assert changed != "mode" and (steps == 1 or not dimension.ordinal)
            assert config in set(space.neighbours(other, Task(PROBLEM, machine))), "a step can be taken back"


def test_the_fingerprint_changes_with_the_body_of_a_constraint(tmp_path: Path) -> None:
    def fingerprint(file: str, body: str) -> str:
        source = tmp_path / file
        source.write_text(f"def allows(s, tile):\n    return {body}\n")
        namespace: dict[str, Any] = {}
        exec(compile(source.read_text(), str(source), "exec"), namespace)
        large = Constraint("large", ("tile",), namespace["allows"], "too large")
        return Space(*TOY.dimensions.values(), constraints=(large,)).fingerprint()

    one, same, other = (
        fingerprint("1.py", "tile < 64"),
        fingerprint("2.py", "tile < 64"),
        fingerprint("3.py", "tile < 9"),
    )
    assert one == same != other
    # Constants on lines without an instruction of their own, and what is in a function within.
    assert fingerprint("4.py", "tile in (\n  1,\n  2,\n  )") != fingerprint("5.py", "tile in (\n  1,\n  3,\n  )")
    assert fingerprint("6.py", "any(\n  tile == i\n  for i in (1, 2))") != fingerprint(
        "7.py", "any(\n  tile == i\n  for i in (1, 3))"
    )


def test_parameters_lead_back_through_optuna() -> None:
    narrowed = FOUND.space.narrowed(TASK)
    for space in (FOUND.space, narrowed):
        for config in sampled(space, TASK, 30):
            fixed = optuna.trial.FixedTrial(space.parameters(config))
            assert space.suggest(fixed) == config
            assert set(space.distributions(config)) == set(config)


@pytest.mark.parametrize(
    ("one", "other"), [((0, 1), (False, True)), ((1, 2), (1, 2)), (("1", "2"), (1, 2))], ids=lambda v: str(v)
)
def test_a_dimension_tells_numbers_flags_and_words_apart(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    dimension = Dimension("any", one)
    alike = one == other and all(type(a) is type(b) for a, b in zip(one, other, strict=True))
    assert all(dimension.holds(value) is alike for value in other)
    assert all(dimension.holds(value) for value in one)


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers("tile"),
        lambda: numbers("tile", 1, 1),
        lambda: numbers("tile", 2, 1),
        lambda: Space(numbers("tile", 1)),
        lambda: Space(choices("mode", "a"), numbers("tile", 1), numbers("tile", 2)),
        lambda: Space(choices("mode", "a"), numbers("tile", 1, modes=("a", "aa"))),
        lambda: Space(choices("mode", "a"), constraints=(Constraint("tile", (), _never, "no", modes=("b",)),)),
        lambda: Space(choices("mode", "a"), constraints=(Constraint("c", ("tile",), _never, "no"),)),
    ],
)
def test_spaces_that_make_no_sense_are_refused_by_name(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="tile"):
        make()


def test_a_part_of_a_space_may_lack_modes_that_its_dimensions_name() -> None:
    space = Space(choices("mode", "a", "b"), numbers("tile", 1, 2, modes=("b",)))
    part = space.restricted({"mode": ["a"]}).restricted({"tile": [2]})
    assert list(part.enumerate(TASK)) == list(part.narrowed(TASK).enumerate(TASK))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "pull"}, "allowed: bsp, push, warp"),
        ({}, "allowed: bsp, push, warp"),
        ({"mode": "bsp", "tile": 16}, "mode bsp has no tile"),
        ({"mode": "push", "tile": 16, "unit": 32}, "mode push needs tma"),
        ({"mode": "push", "tile": 24, "unit": 32, "tma": True}, "tile=24: allowed: 16, 32, 64"),
        ({"mode": "push", "tile": 16, "unit": 32, "tma": 1}, "tma=1: allowed: False, True"),
        ({"mode": "push", "tile": 64, "unit": 32, "tma": True}, "even (tile=64, unit=32): a unit holds whole tiles"),
    ],
)
def test_a_violation_says_what_is_allowed(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        TOY.check(Config(values), TASK)
    assert said in str(caught.value)


def test_the_fingerprint_changes_with_values_and_constraints() -> None:
    dimensions = list(TOY.dimensions.values())
    same = Space(*dimensions, constraints=TOY.constraints)
    even, narrow, never = TOY.constraints
    fewer = Space(*dimensions, constraints=(even, never))
    other_values = Space(*dimensions[:1], numbers("tile", 16, 32, modes=("push",)), *dimensions[2:])
    assert same.fingerprint() == TOY.fingerprint()
    of_a_mode = Space(*dimensions, constraints=(even, dataclasses.replace(narrow, modes=("push",)), never))
    *most, last = dimensions
    changes: list[dict[str, Any]] = [{"ordinal": not last.ordinal}, {"modes": ()}, {"name": "tail"}]
    others = [Space(*most, dataclasses.replace(last, **each), constraints=TOY.constraints) for each in changes]
    for modes in (("push", "bsp", "warp"), ("bsp", "push", "warp", "teleport")):
        others.append(Space(choices("mode", *modes), *dimensions[1:], constraints=TOY.constraints))
    assert len({each.fingerprint() for each in (TOY, fewer, other_values, of_a_mode, *others)}) == 4 + len(others)
    reworded = [dataclasses.replace(each, reason="in other words") for each in TOY.constraints]
    assert Space(*dimensions, constraints=tuple(reworded)).fingerprint() == TOY.fingerprint()


def test_a_config_of_a_space_has_all_dimensions_of_its_mode_and_may_break_a_constraint() -> None:
    config = Config({"mode": "push", "tile": 64, "unit": 32, "tma": False})
    assert TOY.holds(config) and TOY.violation(config, TASK) is not None
    few = Config({"mode": "push", "tile": 64})
    for other in (few, config.replace(tile=24), Config({"mode": "pull"}), Config({"mode": "bsp", "tile": 16})):
        assert not TOY.holds(other)
    assert TOY.of_parameters(TOY.parameters(config)) == config
    assert TOY.of_parameters({**TOY.parameters(few)}) is None and TOY.of_parameters({"mode": 0, "tile": 1}) is None


def test_some_configs_are_valid_each_once_in_their_order() -> None:
    small, large = (Config({"mode": "push", "tile": tile, "unit": 64, "tma": False}) for tile in (16, 64))
    invalid, bsp = large.replace(unit=32), Config({"mode": "bsp"})
    given = [large, invalid, bsp, large, small, bsp]
    assert list(TOY.valid(given, TASK)) == [large, bsp, small]
    assert list(TOY.valid(given, Task(PROBLEM, LAPTOP))) == [bsp, small]
    assert TOY.first_valid([invalid, small, bsp], TASK) == small
    assert TOY.first_valid([invalid], TASK) is None


def test_a_config_is_ordered_as_the_space_is_and_keeps_what_the_space_lacks() -> None:
    mixed = Config({"other": 1, "unit": 64, "tma": False, "mode": "push", "tile": 16})
    assert list(TOY.ordered(mixed)) == ["mode", "tile", "unit", "tma", "other"]


def test_a_constraint_is_lifted_by_its_name_and_the_others_hold() -> None:
    lifted = TOY.restricted({"tile": [64, 32]}, lifted=["narrow"])
    assert [constraint.name for constraint in lifted.constraints] == ["even", "never"]
    assert lifted.dimensions["tile"].values == (32, 64)


def test_a_remembering_space_says_what_the_space_says() -> None:
    for machine in (H100, LAPTOP):
        memoized = TOY.memoized(Task(PROBLEM, machine))
        for tile, unit in itertools.product((16, 32, 64), (32, 64, 128)):
            config = Config({"mode": "push", "tile": tile, "unit": unit, "tma": True})
            assert memoized(config) is TOY.broken(config, Task(PROBLEM, machine))


def test_a_problem_is_refused_only_where_no_mode_is_left() -> None:
    def space(*alive: str) -> Space:
        refused = Constraint("alive", ("mode",), lambda s, mode: mode in alive, "the machine lacks it")
        return Space(choices("mode", "bsp", "push"), constraints=(refused,))

    space("push").check_problem(TASK)
    with pytest.raises(InvalidProblem, match="the machine lacks it"):
        space().check_problem(TASK)


def _even_rows(task: Any, tile: int) -> bool:
    return tile % 2 == 0


def _of_no_mode(task: Any, mode: str) -> bool:
    return False


EVEN_ROWS = Constraint("even", ("tile",), _even_rows, "odd")
NEVER = Constraint("never", ("mode",), _of_no_mode, "never")
TILE: Any = number(1, 2, 4, help="rows", say="{tile:row}")


@dataclass(frozen=True, kw_only=True)
class Push:
    tile: int = TILE
    late: bool = flag(help="later", say="one tile later")

    title: ClassVar[str] = "pushed"
    constraints: ClassVar = (EVEN_ROWS,)


@dataclass(frozen=True, kw_only=True)
class Pull:
    order: str = word("up", "down", help="order", say={"up": "", "down": "backwards"})
    tile: int = TILE

    title: ClassVar[str] = "pulled"
    constraints: ClassVar = (NEVER, EVEN_ROWS)


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
