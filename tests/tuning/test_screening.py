"""Screening: what cannot work is known before a rank sees it, compiled ahead by processes that may crash."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planted import plant
from process_ends import gone
from scripts import run_script

from autotune.config import Config
from autotune.machine import H100
from autotune.outcome import Evaluation, Outcome
from autotune.task import Task
from autotune.tuning import screening
from autotune.tuning.screening import Ahead, Screen
from autotune.tuning.search import Candidate
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
PROBLEM = FOUND.problem_type(m=64, n=128, k=64, world_size=2)


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_COMPILE_WORKERS", "2")
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(Path(__file__).parent / "compilers.py"))


def config(number: int) -> Config:
    return Config({"mode": "pull", "group_m": number})


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """Compilers of a workload that misbehaves, started in a folder from which nothing is imported."""
    plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = workload("compiling")
    with Screen(found, Task(found.problem_type(m=64, n=64, k=64, world_size=2), H100)) as made:
        yield made
    assert not (tmp_path / "has run").exists()


def test_each_way_to_fail_has_its_outcome_and_the_next_config_passes(screen: Screen) -> None:
    futures = {how: screen.submit(config(how)) for how in (1, 2, 4, 8, 16, 32)}
    verdicts = {how: screen.verdict(config(how), future) for how, future in futures.items()}
    assert verdicts[1] is None
    outcomes = {how: verdict.outcome for how, verdict in verdicts.items() if verdict is not None and verdict.reason}
    refused = Outcome.DID_NOT_COMPILE
    assert outcomes == {2: refused, 4: refused, 8: Outcome.OUT_OF_RESOURCES, 16: refused, 32: Outcome.INVALID}
    assert screen.verdict(config(1), screen.submit(config(1))) is None


SCRIPT = """
print("the script runs")
import sys
from autotune.config import Config
from autotune.machine import H100
from autotune.task import Task
from autotune.tuning.screening import Screen
from autotune.workloads import workload
found = workload("compiling")
with Screen(found, Task(found.problem_type(m=64, n=64, k=64, world_size=2), H100)) as screen:
    config = Config({"group_m": 1})
    print("verdict", screen.verdict(config, screen.submit(config)))
print(sys.modules["__main__"].__file__)
"""


def test_compilers_do_not_run_the_programs_script_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_script(str(script), interpreted=False)
    assert done.stdout.splitlines() == ["the script runs", "verdict None", str(script)], done.stderr


def test_real_kernels_pass_and_kernels_too_large_for_the_device_do_not() -> None:
    default = FOUND.default_config(Task(PROBLEM, H100))
    oversized = default.replace(block_m=128, block_n=128, block_k=128, num_stages=6, loads="pointer")
    broken = default.replace(block_k=24, loads="pointer")
    with Screen(FOUND, Task(PROBLEM, H100)) as screen:
        futures = [screen.submit(each) for each in (default, oversized, broken)]
        assert screen.verdict(default, futures[0]) is None
        verdict = screen.verdict(oversized, futures[1])
        assert verdict is not None and verdict.outcome is Outcome.OUT_OF_RESOURCES
        assert str(H100.shared_memory) in verdict.reason
        verdict = screen.verdict(broken, futures[2])
        assert verdict is not None and verdict.outcome is Outcome.DID_NOT_COMPILE
        assert "\n" not in verdict.reason


def test_a_compiler_that_takes_too_long_is_ended_and_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found, before = workload("compiling"), named_semaphores()
    with Screen(found, Task(PROBLEM, H100)) as screen:
        screen.start()
        monkeypatch.setattr(screening, "COMPILE_SECONDS", 1.0)
        stuck = screen.submit(config(64))
        verdict = screen.verdict(config(64), stuck)
        assert verdict is not None and verdict.outcome is Outcome.DID_NOT_COMPILE
        assert "1 s" in verdict.reason
        monkeypatch.setattr(screening, "COMPILE_SECONDS", 600.0)
        good = screen.submit(config(1))
        assert screen.verdict(config(1), good) is None
        screen.submit(config(64))
        assert screen._pool is not None
        pids = [helper._process.pid for helper in screen._pool._helpers]
        assert pids and not any(gone(pid) for pid in pids)
        assert named_semaphores() == before, "nobody would remove them where all processes are killed at once"
    assert all(gone(pid) for pid in pids), "leaving waits for no compiler's end of its job"


def named_semaphores() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "/sem.mp-" in line]


class Controlled:
    """Stands in for ``Screen``: compilations end when the test says so."""

    lookahead = 3

    def __init__(self) -> None:
        self.futures: dict[Config, Future[Any]] = {}

    def submit(self, config: Config) -> Future[Any]:
        self.futures[config] = Future()
        return self.futures[config]

    def verdict(self, config: Config, future: Future[Any]) -> Evaluation | None:
        found: Evaluation | None = future.result(timeout=300)
        return found


def test_what_is_compiled_comes_first_and_the_oldest_of_it() -> None:
    screen: Any = Controlled()
    ahead, candidates = Ahead(screen), iter([Candidate(config(number), "first") for number in range(3)])
    ahead.fill(lambda: next(candidates, None))
    refused = Evaluation(Outcome.DID_NOT_COMPILE, "planted")
    screen.futures[config(1)].set_result(refused)
    screen.futures[config(2)].set_result(None)
    for number, verdict in ((1, refused), (2, None)):
        candidate, found = ahead.take()
        assert (candidate.config, found) == (config(number), verdict)
    screen.futures[config(0)].set_result(None)
    assert ahead.take()[0].config == config(0) and not ahead


@pytest.mark.parametrize(("compiling", "evaluating", "most"), [(1.0, 0.25, 6), (0.1, 0.2, 3), (9.0, 0.1, 40)])
def test_few_are_on_the_way(monkeypatch: pytest.MonkeyPatch, compiling: float, evaluating: float, most: int) -> None:
    """Every config takes the compilers as long as the next; before that is known there are eight."""
    clock, screen, numbers = SimpleNamespace(now=0.0), Controlled(), iter(range(1000))
    monkeypatch.setattr(screening, "time", SimpleNamespace(monotonic=lambda: clock.now))
    screen.lookahead = 40
    ahead, started = Ahead(screen), dict[Config, float]()  # type: ignore[arg-type]

    def fill() -> None:
        ahead.fill(lambda: Candidate(config(next(numbers)), "first"))
        started.update((each, clock.now) for each in screen.futures if each not in started)

    def compiled() -> None:
        for each, future in screen.futures.items():
            if not future.done() and started[each] + compiling <= clock.now + 1e-9:
                future.set_result(None)

    fill()
    assert len(screen.futures) == 8
    for _ in range(100):
        clock.now += evaluating
        compiled()
        while not any(future.done() for _, future in ahead._waiting if future is not None):
            clock.now += 0.01  # the ranks wait
            compiled()
        ahead.take()
        fill()
    assert len(ahead._waiting) == ahead.depth == most
