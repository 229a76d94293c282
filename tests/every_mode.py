"""Configs of every mode of a workload, and the check that each gives the right result on every rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.config import Config
from autotune.environment import Machine, machine
from autotune.outcome import Outcome
from autotune.ranks.gang import Gang, MeasurePlan
from autotune.tuning.screening import Screen
from autotune.workloads import Workload

ONCE = MeasurePlan(warmup=0, screen=1, iterations=1)


def variants(workload: Workload, problem: Any, here: Machine, tiles: list[dict[str, int]]) -> Iterator[Config]:
    """Every valid combination of the words of each mode (loads, schedule, order, site), over the tiles in turn."""
    space = workload.space
    turn = itertools.cycle(tiles)
    for mode in space.modes:
        words = [d for d in space.dimensions_of(mode) if not d.ordinal]
        numbers = {d.name for d in space.dimensions_of(mode) if d.ordinal}
        for values in itertools.product(*(d.values for d in words)):
            chosen = dict(zip((d.name for d in words), values, strict=True))
            if chosen["mode"] != mode:
                continue
            tile = {name: value for name, value in next(turn).items() if name in numbers}
            config = Config({**chosen, **tile})
            if chosen.get("schedule") not in (None, "tile") and here.is_interpreter and "comm_programs" in config:
                config = config.replace(comm_programs=1)
            if space.violation(config, problem, here) is None:
                yield config


def check_all(workload: Workload, problem: Any, configs: list[Config], modes: set[str]) -> None:
    """Every config, all ``modes`` among them, gives the right result on every rank, before and after it is timed."""
    here = machine()
    assert {config["mode"] for config in configs} >= modes
    with Screen(workload, problem, here) as screen, Gang(workload, problem, here) as gang:
        compiling = [(config, screen.submit(config)) for config in configs]
        for seed, (config, future) in enumerate(compiling):
            refused = screen.verdict(config, future)
            evaluation = refused or gang.evaluate(config, seed, ONCE)
            assert evaluation.outcome is Outcome.MEASURED, f"{problem} {config}: {evaluation}"
        assert gang.restarts == 0


def on_cpu() -> Machine:
    """The interpreter; these tests are for machines without a GPU."""
    here = machine()
    if not here.is_interpreter:
        pytest.skip("the interpreter runs where there is no GPU")
    return here


def few(configs: Iterator[Config], count: int) -> list[Config]:
    """About ``count`` of them, spread evenly, with at least one of each mode."""
    everything = list(configs)
    spread = everything[:: max(1, len(everything) // count)]
    firsts = {str(config["mode"]): config for config in reversed(everything)}
    return list(dict.fromkeys([*firsts.values(), *spread]))
