"""The recordings that the package and the benchmarks carry: each fits its workload's space, and replays as recorded."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from autotune.ranks.evaluation import MeasurePlan
from autotune.recordings.file import read as read_file
from autotune.recordings.replay import Replay
from autotune.task import Task
from autotune.workloads import workload

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench/recordings", "bench/recordings/one_gpu", "bench/recordings/two_gpus")
TABLES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.json.gz"))]
PLAN = MeasurePlan()

read = functools.cache(read_file)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name.split(".")[0])
def test_every_config_replays_as_it_was_recorded(path: Path) -> None:
    table = read(path)
    found = workload(table.workload)
    problem, machine, space = table.problem_of(found), table.machine, table.space_of(found)
    replay = Replay(table)
    replay.turn_to(found, problem)
    assert all(replay.evaluate(config, 0, PLAN) is evaluation for config, evaluation in table.evaluations.items())
    forbidden = sum(space.violation(config, Task(problem, machine)) is not None for config in table.evaluations)
    assert forbidden < 0.1 * len(table.evaluations), "a constraint that is newer forbids a few at most"
