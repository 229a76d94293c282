"""Recordings that are older than names, dimensions and modes of today stay usable, with the very same latencies."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.errors import InputError
from autotune.ranks.evaluation import MeasurePlan
from autotune.recordings import Recording, Replay
from autotune.recordings import read as read_file
from autotune.search_spaces import Dimension, Space, numbers
from autotune.workloads import Workload, workload

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench/recordings", "bench/recordings/one_gpu", "tests/data")
TABLES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.json.gz"))]
PLAN = MeasurePlan()

read = functools.cache(read_file)


def with_space(found: Workload, *more: Dimension) -> Workload:
    """The workload with a new mode, ``ring``, a knob that it alone has, and ``more``."""
    old = found.space
    first, *others = old.dimensions.values()
    mode = dataclasses.replace(first, values=(*first.values, "ring"))
    space = Space(
        mode, *others, numbers("ring_width", 2, 4, modes=("ring",)), *more,
        constraints=old.constraints, renamed=old.renamed,
    )  # fmt: skip
    grown = copy.copy(found)
    vars(grown)["space"] = space
    return grown


@pytest.fixture(params=TABLES, ids=lambda path: path.name.split(".")[0])
def table(request: pytest.FixtureRequest) -> Recording:
    return read(request.param)


def test_there_are_seven_measured_tables_of_four_gpus_and_four_of_one() -> None:
    assert [read(path).machine.gpus for path in TABLES if read(path).origin == "measured"] == [4] * 7 + [1] * 4


def test_every_config_replays_as_it_was_recorded(table: Recording) -> None:
    found = workload(table.workload)
    fitted = table.fitted(found)
    problem, machine = fitted.problem_of(found), fitted.machine
    replay, space = Replay(fitted), fitted.space_of(found)
    assert len(fitted.evaluations) == len(table.evaluations) and fitted.optimum == table.optimum
    for now, (old, evaluation) in zip(fitted.evaluations, table.evaluations.items(), strict=True):
        was = space.renamed.config(old)
        newer = {name: value for name, value in now.items() if name not in was}
        assert newer == {name: space.dimensions[name].default for name in newer}
        assert sorted(map(str, [*newer.values(), *was.values()])) == sorted(map(str, now.values()))
        assert replay.evaluate(now, 0, PLAN) is evaluation
    forbidden = sum(space.violation(config, problem, machine) is not None for config in fitted.evaluations)
    assert forbidden < 0.1 * len(fitted.evaluations), "a constraint that is newer forbids a few at most"


def test_a_new_dimension_with_a_default_and_a_new_mode_change_nothing(table: Recording) -> None:
    found = workload(table.workload)
    grown = with_space(found, numbers("prefetch", 0, 1, 2, default=0))
    table = dataclasses.replace(table, evaluations=dict(itertools.islice(table.evaluations.items(), 0, None, 8)))
    before, after = table.fitted(found), table.fitted(grown)
    assert after.dimensions["prefetch"] == (0,) and "ring_width" not in after.dimensions
    for (old, was), (now, found_now) in zip(before.evaluations.items(), after.evaluations.items(), strict=True):
        assert now == Config({**old, "prefetch": 0}) and found_now is was
    problem, reduced = table.problem_of(found), table.reduced(grown).space
    assert reduced.size(problem, table.machine) == table.space_of(found).size(problem, table.machine)
    assert "ring" not in reduced.modes


def test_a_new_dimension_without_a_default_is_named(table: Recording) -> None:
    grown = with_space(workload(table.workload), numbers("prefetch", 0, 1, 2))
    with pytest.raises(InputError, match="dimensions prefetch are not in both; record it again"):
        table.fitted(grown)
