"""Kernels that are not ours, recorded: their tables say all there is to know about their spaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from search_strategies import Table, ours_without_first, randomly

from autotune.task import Task

FOREIGN = Path(__file__).parents[2] / "bench" / "recordings" / "foreign"
TABLES = sorted(FOREIGN.glob("*.json.gz"))


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.name.split(".")[0])
def test_a_foreign_table_is_its_own_space(file: Path) -> None:
    table = Table.open(file)
    recorded = list(table.recording.evaluations)
    assert 500 <= len(recorded) <= 2000 and 4 <= len(table.space.dimensions) - 1 <= 8
    assert all(table.space.violation(config, Task(None, table.machine)) is None for config in recorded)  # type: ignore[arg-type]
    assert table.space.size(Task(None, table.machine)) == len(recorded)  # type: ignore[arg-type]
    assert table.workload is None and table.first == [] and table.predict(recorded[0]) is None
    assert {"package", "kernel"} <= set(table.recording.problem)


def test_a_search_of_one_finds_what_chance_does_not() -> None:
    table = Table.open(FOREIGN / "attention.json.gz")
    found = [[min(way(table, 60, seed)) for seed in range(3)] for way in (ours_without_first, randomly)]
    ours, chance = (sum(each) / len(each) / table.recording.optimum for each in found)
    assert ours < 1.2 < chance
