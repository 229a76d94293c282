"""Shared by the workloads' tests: every combination of a mode's words, run on ranks, before and after it is timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.config import Config
from autotune.machine import Machine, machine
from autotune.outcome import Outcome
from autotune.ranks import evaluation
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.tuning.screening import Screen
from autotune.workloads import Workload

LIBRARY = {"bsp", "library_collective"}
"""Modes with a collective of NCCL's, which refuses ranks that share a GPU."""

ONCE = MeasurePlan(warmup=0, screen=1, iterations=1)


def variants(workload: Workload, problem: Any, here: Machine, tiles: list[dict[str, int]]) -> Iterator[Config]:
    """Every valid combination of each mode's words (loads, schedule, order, site), with the next tile that suits."""
    space = workload.space
    turn = itertools.count()
    for mode in space.modes:
        words = [d for d in space.dimensions_of(mode) if not d.ordinal and d.name != "mode"]
        numbers = {d.name for d in space.dimensions_of(mode) if d.ordinal}
        for values in itertools.product(*(d.values for d in words)):
            chosen = {"mode": mode, **dict(zip((d.name for d in words), values, strict=True))}
            first = next(turn) % len(tiles)
            for tile in (*tiles[first:], *tiles[:first]):
                config = Config({**chosen, **{name: value for name, value in tile.items() if name in numbers}})
                if chosen.get("schedule") not in (None, "tile") and here.is_interpreter and "comm_programs" in config:
                    config = config.replace(comm_programs=1)
                if "split_k" in config and space.violation(config, problem, here) is not None:
                    config = config.replace(split_k=1)
                if space.violation(config, problem, here) is None:
                    yield config
                    break


def few(configs: Iterator[Config], count: int) -> list[Config]:
    """About ``count`` of them, spread evenly, with at least one of each mode."""
    everything = list(configs)
    spread = everything[:: max(1, len(everything) // count)]
    firsts = {str(config["mode"]): config for config in reversed(everything)}
    return list(dict.fromkeys([*firsts.values(), *spread]))


class Ranks:
    """A gang of each size, and the compilers, that the tests share: to start them takes longer than most tests."""

    def __init__(self) -> None:
        self.gangs: dict[int, Gang] = {}
        self.screen: Screen | None = None

    def turn_to(self, workload: Workload, problem: Any) -> tuple[Gang, Screen]:
        here = machine()
        if self.screen is None:
            self.screen = Screen(workload, problem, here)
        self.screen.turn_to(workload, problem)
        if problem.world_size not in self.gangs:
            self.gangs[problem.world_size] = Gang(workload, problem, here, HEAP)
        gang = self.gangs[problem.world_size]
        gang.turn_to(workload, problem)
        gang.start()
        return gang, self.screen

    def close(self) -> None:
        for gang in self.gangs.values():
            gang.close()
        self.gangs.clear()
        if self.screen is not None:
            self.screen.__exit__(None, None, None)
            self.screen = None


RANKS = Ranks()
HEAP = 64 << 20
"""Bytes: enough for most problems here, so that the ranks need not start again for the next."""


ranks_a_gpu = pytest.mark.parametrize("ranks", [1, 2], ids=["one rank a GPU", "two ranks a GPU"])
"""Eight ranks on four GPUs show all interactions, except those of the library's collectives."""


def check_all(
    workload: Workload, problem: Any, configs: list[Config], modes: set[str], plan: MeasurePlan = ONCE
) -> None:
    """Every config gives the right result on every rank, before and after it is timed; ``modes`` are among them."""
    if not machine().is_interpreter and problem.world_size > machine().gpus:
        configs, modes = [config for config in configs if config["mode"] not in LIBRARY], modes - LIBRARY
    assert {config["mode"] for config in configs} >= modes
    gang, screen = RANKS.turn_to(workload, problem)
    restarts = gang.restarts
    compiling = [(config, screen.submit(config)) for config in configs]
    with pytest.MonkeyPatch.context() as patch:
        if machine().is_interpreter:
            # Ranks that come a call's time after each other sleep for a seventh of these tests, and calls beyond the
            # fourth, when both slots have been used twice, are a third; races and long runs have tests of their own.
            patch.setitem(evaluation.LONGEST_STAGGER, "interpreter", 0.02)
            patch.setattr(evaluation, "BURSTS", 1)
        for seed, (config, future) in enumerate(compiling):
            refused = screen.verdict(config, future)
            found = refused or gang.evaluate(config, seed, plan)
            assert found.outcome is Outcome.MEASURED, f"{problem} {config}: {found}"
    assert gang.restarts == restarts


def on_cpu() -> Machine:
    """The interpreter; the tests that ask for it are for machines without a GPU."""
    here = machine()
    if not here.is_interpreter:
        pytest.skip("the interpreter runs where there is no GPU")
    return here
