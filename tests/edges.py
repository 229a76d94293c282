"""The test that spaces share: a space refuses what cannot work, by the name of the constraint, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.config import Config
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads import workload


class Edges:
    name: str
    sizes: dict[str, Any]
    """The problem's sizes, unless a row has others."""
    rows: list[tuple[Config, dict[str, Any], Machine, str | None]]
    """A config, the problem's other fields, the machine, and the constraint that refuses it."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "told" in metafunc.fixturenames:
            metafunc.parametrize(("config", "fields", "machine", "told"), self.rows)

    def test_a_constraint_ends_where_it_says(
        self, config: Config, fields: dict[str, Any], machine: Machine, told: str | None
    ) -> None:
        found = workload(self.name)
        assert found.space.holds(config)
        broken = found.space.broken(config, Task(found.problem_type(**{**self.sizes, **fields}), machine))
        assert (broken.name if broken else None) == told
