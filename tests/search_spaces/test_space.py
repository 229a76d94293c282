"""A space says which configs are valid, why others are not, and how many there are."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from fakes import LAPTOP

from autotune.config import Config
from autotune.errors import InvalidConfig, InvalidProblem
from autotune.machine import H100, MI300X, Machine
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


@pytest.mark.parametrize(("machine", "expected"), [(H100, 1 + 2 * 8), (LAPTOP, 1 + 2 * 6)])
def test_enumeration_size_and_brute_force_agree(machine: Machine, expected: int) -> None:
    everything = [Config({"mode": "bsp"})] + [
        Config({"mode": "push", "tile": tile, "unit": unit, "tma": tma})
        for tile, unit, tma in itertools.product((16, 32, 64), (32, 64, 128), (False, True))
    ]
    valid = {config for config in everything if TOY.violation(config, Task(problem(), machine)) is None}
    assert set(TOY.enumerate(Task(problem(), machine))) == valid
    assert TOY.size(Task(problem(), machine)) == len(valid) == expected
    narrowed = TOY.narrowed(Task(problem(), machine))
    assert set(narrowed.enumerate(Task(problem(), machine))) == valid
    assert narrowed.dimensions["tile"].values == tuple(sorted({c.integer("tile") for c in valid if "tile" in c}))


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
    assert len({each.fingerprint() for each in (TOY, fewer, other_values, of_a_mode, *others)}) == 4 + len(changes)


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


PUSH = {
    "mode": "push", "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 3,
    "loads": "pointer", "schedule": "tile", "transfer_rows": 128, "comm_programs": 16, "copy_kib": 16,
    "peer_order": "rotate", "push_site": "same_launch", "head_start": 0, "split_k": 1, "preload_b": False,
    "k_chunks": 1,
}  # fmt: skip
COPIES = {
    "mode": "copy_engine", "transfer_rows": 128, "gemm_streams": 1, "copies": "pulled", "chunk_sizes": "even",
}  # fmt: skip
SENTINEL = {
    "mode": "custom_collective", "comm_programs": 8, "copy_kib": 2, "peer_order": "fanout", "protocol": "sentinel",
}  # fmt: skip
PULL = {name: value for name, value in PUSH.items() if FOUND.space.dimensions[name].belongs_to("pull")}


@pytest.mark.parametrize(
    ("name", "config", "fields", "machine"),
    [
        ("registers", {**PUSH, "block_m": 256, "block_n": 256}, {}, H100),
        ("TMA exists", {**PUSH, "loads": "tma"}, {}, MI300X),
        ("TMA alignment", {**PUSH, "loads": "tma"}, {"n": 4 * 500, "k": 1000, "m": 4096}, H100),
        ("TMA alignment", {**PUSH, "loads": "tma"}, {"n": 4 * 1028, "out_dtype": "fp32"}, H100),
        ("TMA alignment", {**PUSH, "loads": "tma"}, {"n": 4 * 1032, "epilogue": "swiglu"}, H100),
        ("sequential programs", {**PUSH, "schedule": "persistent", "comm_programs": 2}, {}, LAPTOP),
        ("flattening", {**PUSH, "schedule": "flattened", "split_k": 2, "transfer_rows": 64}, {"m": 256}, H100),
        ("flattening", {**PULL, "mode": "pull", "schedule": "flattened"}, {}, H100),
        ("copies by rows", COPIES, {"layout": "k"}, H100),
        ("CUDA graphs", {"mode": "bsp", "launch": "graph"}, {}, LAPTOP),
        ("streams", {**COPIES, "gemm_streams": 2}, {}, LAPTOP),
        ("copies to a result", {**COPIES, "copies": "pushed"}, {"gathered": True}, H100),
        ("words to all", {**SENTINEL, "peer_order": "rotate"}, {"m": 64}, H100),
        ("words arrive", SENTINEL, {"m": 64}, MI300X),
    ],
)
def test_each_constraint_refuses_what_it_is_for(
    name: str, config: dict[str, Any], fields: dict[str, Any], machine: Machine
) -> None:
    """Those of all-gather + GEMM whose ends ``test_all_gather_gemm`` and ``test_gemm`` do not show."""
    violation = FOUND.space.violation(Config(config), Task(problem(**fields), machine))
    assert violation is not None and violation.startswith(name), violation


def test_rows_of_a_transposed_b_are_as_long_as_its_depth() -> None:
    """So TMA loads it whatever its columns; C in fp32 has rows of 16 bytes here, in bf16 it would not."""
    fields = {"n": 4 * 1028, "out_dtype": "fp32", "b_order": "nk"}
    assert FOUND.space.violation(Config({**PUSH, "loads": "tma"}), Task(problem(**fields), H100)) is None
