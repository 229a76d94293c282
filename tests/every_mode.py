"""Shared by the workloads' tests: every combination of a mode's words, run on ranks, before and after it is timed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from autotune.config import Config
from autotune.machine import Machine, machine
from autotune.outcome import Outcome
from autotune.ranks import evaluation
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.tuning.screening import Screen
from autotune.workloads import Workload, workload

LIBRARY = {"bsp", "library_collective"}
"""Modes with a collective of NCCL's, which refuses ranks that share a GPU."""

ONCE = MeasurePlan(warmup=0, screen=1, iterations=1)

GPU_DEADLINES = {"check": 120.0}
"""Seconds. Ranks that share a GPU take turns of 2 ms: programs that wait for peers tile by tile then take 2.3 s for a
call of 4096 rows (one H200, two ranks, GEMM + all-reduce, two_shot, 16x32 tiles, 2026-11-24), and a check is a dozen.
"""


def whole(*values: Any) -> Any:
    """Parameters of a matrix of which ``make test`` runs a sample: these are among the rest."""
    return pytest.param(*values, marks=pytest.mark.slow)


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
                if "split_k" in config and space.violation(config, Task(problem, here)) is not None:
                    config = config.replace(split_k=1)
                if space.violation(config, Task(problem, here)) is None:
                    yield config
                    break


def few(problem: Any, configs: Iterable[Config], count: int) -> list[Config]:
    """About ``count`` of them, one of each mode first, then the one with the most pairs of words that none has yet.

    Each problem begins with others, so that a file's problems have more pairs together than any of them.
    """
    left = list(configs)
    random.Random(str(problem)).shuffle(left)
    chosen = list({str(config["mode"]): config for config in left}.values())
    seen = set().union(*map(_words, chosen))
    while len(chosen) < count and (left := [config for config in left if config not in chosen]):
        chosen.append(max(left, key=lambda config: len(_words(config) - seen)))
        seen |= _words(chosen[-1])
    return chosen


def _words(config: Config) -> set[tuple[object, ...]]:
    """A config's words, those that are not numbers, alone and in pairs."""
    words = [each for each in config.items() if each[0] != "mode" and isinstance(each[1], str | bool)]
    return {(config["mode"], *some) for size in (1, 2) for some in itertools.combinations(words, size)}


class Ranks:
    """A gang of each size, and the compilers, that the tests share: to start them takes longer than most tests."""

    def __init__(self) -> None:
        self.gangs: dict[int, Gang] = {}
        self.screen: Screen | None = None

    def turn_to(self, workload: Workload, problem: Any) -> tuple[Gang, Screen]:
        here = machine()
        if self.screen is None:
            self.screen = Screen(workload, Task(problem, here))
        self.screen.turn_to(workload, problem)
        if problem.world_size not in self.gangs:
            self.gangs[problem.world_size] = Gang(
                workload, Task(problem, here), HEAP, deadlines=None if here.is_interpreter else GPU_DEADLINES
            )
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


ranks_a_gpu = pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(1, id="one rank a GPU", marks=pytest.mark.gpu(2, each=True)),
        pytest.param(2, id="two ranks a GPU", marks=pytest.mark.gpu),
    ],
)
"""Eight ranks on four GPUs show all interactions, except those of the library's collectives."""


def check_all(
    workload: Workload, problem: Any, configs: list[Config], modes: set[str], plan: MeasurePlan | None = None,
    calls: int = 2,
) -> None:  # fmt: skip
    """Every config gives the right result on every rank, alone and in ``calls`` back to back; ``modes`` are among them.
    It is timed in between on GPUs, and where there is a plan.
    """
    interpreted = machine().is_interpreter
    if not interpreted and problem.world_size > machine().gpus:
        configs, modes = [config for config in configs if config["mode"] not in LIBRARY], modes - LIBRARY
    assert {config["mode"] for config in configs} >= modes
    gang, screen = RANKS.turn_to(workload, problem)
    restarts = gang.restarts
    compiling = [(config, screen.submit(config)) for config in configs]
    with pytest.MonkeyPatch.context() as patch:
        if interpreted:
            # Races, ranks that are far apart, and what comes after a timing have tests of their own.
            patch.setitem(evaluation.LONGEST_STAGGER, "interpreter", 0.02)
            patch.setitem(evaluation.BURSTS, "interpreter", 1)
        for seed, (config, future) in enumerate(compiling):
            if interpreted:
                # With the one alone, so many that a slot is used again: there are two, and three of sentinel words.
                burst = 3 if config.get("protocol") == "sentinel" else calls
                patch.setitem(evaluation.PROOF_CALLS, "interpreter", burst)
                patch.setitem(evaluation.PROOF_BURST, "interpreter", burst)
            wrong = screen.verdict(config, future)
            if wrong is None and interpreted and plan is None:
                wrong = gang.prove(config, seed, latency=0.0)
            elif wrong is None:
                found = gang.evaluate(config, seed, plan or ONCE)
                wrong = None if found.outcome is Outcome.MEASURED else found
            assert wrong is None, f"{problem} {config}: {wrong}"
    assert gang.restarts == restarts


class EveryModeTests:
    """A workload is right in every mode: under the interpreter, and on all GPUs there are. A file is a table."""

    name: str
    modes: set[str]
    exchanging: set[str] = set()
    """Modes that one rank alone does not have."""
    steps: list[dict[str, int]]
    """Numbers to go with each mode's words."""
    gpu_steps: list[dict[str, int]]
    small: list[Any]
    """Ranks, sizes and a count of configs, or the modes to have one of each, for the interpreter."""
    large: list[dict[str, Any]]  # sizes, for GPUs
    gpu_count = 16
    shared_out: tuple[str, ...] = ()
    """Sizes that are times the ranks."""
    calls = 2

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "small_sizes" in metafunc.fixturenames:
            metafunc.parametrize(("world_size", "small_sizes", "count"), self.small)
        if "large_sizes" in metafunc.fixturenames:
            metafunc.parametrize("large_sizes", self.large, ids=self.said)

    def test_every_mode_is_right_under_the_interpreter(
        self, world_size: int, small_sizes: dict[str, Any], count: int | set[str]
    ) -> None:
        self.check(self.problem(world_size=world_size, **small_sizes), on_cpu(), self.steps, count)

    @ranks_a_gpu
    def test_every_mode_is_right_on_gpus(self, ranks: int, large_sizes: dict[str, Any]) -> None:
        here = machine()
        problem = self.problem(world_size=here.gpus * ranks, **large_sizes)
        self.check(problem, here, self.gpu_steps, self.gpu_count)

    def problem(self, *, world_size: int, **sizes: Any) -> Any:
        sizes |= {name: sizes[name] * world_size for name in self.shared_out}
        return workload(self.name).problem_type(world_size=world_size, **sizes)

    def steps_of(self, problem: Any, steps: list[dict[str, int]]) -> list[dict[str, int]]:
        """Those that suit a problem."""
        return [step for step in steps if step.get("block_m", 0) <= max(16, getattr(problem, "m", 0))]

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        return self.modes - (self.exchanging if problem.world_size == 1 else set())

    def check(self, problem: Any, here: Machine, steps: list[dict[str, int]], count: int | set[str]) -> None:
        found = workload(problem.workload)
        modes, count = (count, 1) if isinstance(count, set) else (self.modes_of(problem, here), count)
        configs = variants(found, problem, here, self.steps_of(problem, steps))
        if modes < self.modes_of(problem, here):
            configs = (each for each in configs if each["mode"] in modes)
        check_all(found, problem, few(problem, configs, count), modes, calls=self.calls)

    @staticmethod
    def said(sizes: dict[str, Any]) -> str:
        """A problem's sizes in a test's name."""
        return "-".join(map(str, sizes.values()))


def on_cpu() -> Machine:
    """The interpreter; the tests that ask for it are for machines without a GPU."""
    here = machine()
    if not here.is_interpreter:
        pytest.skip("the interpreter runs where there is no GPU")
    return here
