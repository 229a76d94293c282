"""Helpers of the tests of spaces: edges of their constraints, and configs drawn from them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from autotune.config import Config
from autotune.machine import Machine
from autotune.search_spaces import Space
from autotune.task import Task
from autotune.workloads import workload


def sampled(
    space: Space, task: Task[Any], count: int, without: frozenset[str] = frozenset(),
    best: Callable[[Config], int] | None = None,
) -> list[Config]:  # fmt: skip
    """Valid configs drawn at random, the same ones each time; the modes in turn. Of eight each is the ``best``."""
    rng, found = random.Random(7), list[Config]()
    modes = [mode for mode in space.modes if mode not in without]
    for number in range(count if modes else 0):
        mode, valid = modes[number % len(modes)], list[Config]()
        for _ in range(1600):
            config = Config({d.name: rng.choice(d.values) for d in space.dimensions_of(mode)} | {"mode": mode})
            if space.violation(config, task) is None:
                valid.append(config)
            if len(valid) == (1 if best is None else 8):
                break
        found += [min(valid, key=best)] if best and valid else valid
    assert len({config["mode"] for config in found}) > 1 or min(count, len(modes)) < 2
    return found


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
