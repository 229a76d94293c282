"""The supervisor's verdicts on the ranks' replies and times; starts no process."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.config import Config
from autotune.errors import GangError, RanksDisagree
from autotune.machine import INTERPRETER, Machine
from autotune.outcome import Outcome, Regime
from autotune.ranks import evaluation
from autotune.ranks import gang as gang_module
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang, _Phase
from autotune.ranks.measure import combine
from autotune.ranks.protocol import (
    Bug,
    Check,
    Done,
    Failed,
    Measure,
    MeasureBarrier,
    MeasureIsolated,
    MeasureParts,
    Recheck,
    Reply,
    Request,
)
from autotune.tuning.finals import finals_plan
from autotune.workloads import workload

LAPTOP = Machine("interpreter", INTERPRETER, "cpu", 0, 8, 1 << 30, 0, "shared-memory")
CONFIG = Config({"mode": "bsp", "launch": "eager"})
DONE = Done("same")


class ScriptedGang(Gang):
    """A gang whose ranks reply as the test says."""

    def __init__(self) -> None:
        found = workload("all_gather_gemm")
        super().__init__(found, found.problem_type(m=32, n=64, k=64, world_size=2), LAPTOP)
        self._processes: list[Any] = ["rank 0", "rank 1"]
        self.asked: list[Request] = []
        self.scale, self.host = 1.0, 0.0

    def reply(self, request: Request, rank: int) -> Reply:
        """Rank's reply: ever slower times, no error."""
        if isinstance(request, Measure):
            times = tuple(self.scale * (100.0 * (i + 1) + rank) for i in range(request.iterations))
            return Done("same", times=times, host=tuple(self.host + rank for _ in times) if self.host else ())
        if isinstance(request, MeasureIsolated):
            return Done("same", times=tuple(900.0 + 10 * i + rank for i in range(request.calls)))
        return DONE

    def _ask(self, requests: Sequence[Request], phase: str) -> _Phase:
        self.asked.append(requests[0])
        return _Phase([self.reply(request, rank) for rank, request in enumerate(requests)])

    def _alive(self) -> bool:
        return bool(self._processes)

    def _kill(self) -> None:
        self._processes = []

    def start(self) -> None:
        self._processes = ["rank 0", "rank 1"]


def kinds(gang: ScriptedGang) -> list[str]:
    return [type(request).__name__ for request in gang.asked]


def verdict(*replies: Reply | None, dead: dict[int, str] | None = None, silent: Sequence[int] = ()) -> Failed | None:
    return ScriptedGang()._failure(_Phase(list(replies), list(silent), dead or {}), "check")


def test_all_well_is_no_failure() -> None:
    assert verdict(DONE, DONE) is None


def test_a_failed_rank_is_the_reason_and_a_silent_one_its_victim() -> None:
    reply = Failed(Outcome.OUT_OF_RESOURCES, "no memory")
    assert verdict(DONE, reply) == Failed(Outcome.OUT_OF_RESOURCES, "rank 1: no memory", broken=False)
    assert verdict(None, reply, silent=[0]) == Failed(Outcome.OUT_OF_RESOURCES, "rank 1: no memory", broken=True)


def test_one_broken_rank_breaks_the_gang() -> None:
    found = verdict(Failed(Outcome.TIMED_OUT, "timed out"), Failed(Outcome.CRASHED, "CUDA error", broken=True))
    assert found == Failed(Outcome.TIMED_OUT, "rank 0: timed out", broken=True)


def test_where_a_rank_died_the_others_complaints_are_no_bugs() -> None:
    found = verdict(Bug("RuntimeError: connection closed by peer"), None, dead={1: "SIGSEGV"})
    assert found == Failed(Outcome.CRASHED, "rank 1 died in phase check: SIGSEGV", broken=True)


def test_silence_is_a_time_out_that_names_the_ranks() -> None:
    found = verdict(None, None, silent=[0, 1])
    assert found is not None and found.broken
    assert (found.outcome, found.reason) == (
        Outcome.TIMED_OUT, "no answer from rank 0, 1 in phase check within 60 s",
    )  # fmt: skip


def test_a_bug_stops_the_run() -> None:
    with pytest.raises(GangError, match="rank 1 raised an unexpected error .*phase check.*\nTraceback: planted"):
        verdict(DONE, Bug("Traceback: planted"))


def test_ranks_that_always_break_are_not_restarted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ScriptedGang):
        def reply(self, request: Request, rank: int) -> Reply:
            return Failed(Outcome.CRASHED, "CUDA error", broken=True)

    monkeypatch.setattr(gang_module, "MOST_RESTARTS", 2)
    gang = Broken()
    for restarts in (1, 2):
        assert gang.evaluate(CONFIG, 1, MeasurePlan()).outcome is Outcome.CRASHED
        assert gang.restarts == restarts and gang._processes
    with pytest.raises(GangError, match="restarted 2 times .* the machine seems to be at fault"):
        gang.evaluate(CONFIG, 1, MeasurePlan())
    assert not gang._processes, "closed"


def test_ranks_that_work_on_different_things_stop_the_run() -> None:
    class Divided(ScriptedGang):
        def reply(self, request: Request, rank: int) -> Reply:
            return Done(f"config {rank}")

    with pytest.raises(RanksDisagree, match="rank 0: config 0; rank 1: config 1"):
        Divided().evaluate(CONFIG, 1, MeasurePlan())


def test_the_phases_of_an_evaluation() -> None:
    gang = ScriptedGang()
    found = gang.evaluate(CONFIG, 7, MeasurePlan(warmup=2, screen=5, iterations=15))
    assert kinds(gang) == ["Compile", "Check", "Measure", "Measure", "Measure", "Recheck"]
    _, check, *parts, recheck = gang.asked
    assert parts == [Measure(2, 5), Measure(0, 5), Measure(0, 5)]
    assert isinstance(check, Check) and isinstance(recheck, Recheck)
    assert check.seed != recheck.seed
    assert recheck.bursts >= 3 and recheck.calls >= 3, "every kind of burst, and both slots used twice"
    assert recheck.stagger > 0 and recheck.pause > 0
    assert found.latency is not None and found.latency.iterations == 15
    assert found.times == (101.0, 201.0, 301.0, 401.0, 501.0) * 3, "of each iteration the slower rank's"


@pytest.mark.parametrize(("incumbent", "iterations"), [(95.0, 5), (120.0, 10), (300.0, 15), (None, 15)])
def test_only_what_is_clearly_slower_is_dropped(incumbent: float | None, iterations: int) -> None:
    gang = ScriptedGang()
    times = (incumbent,) * 40 if incumbent is not None else ()
    found = gang.evaluate(CONFIG, 7, MeasurePlan(0, 5, 15, times))
    assert found.latency is not None and found.latency.iterations == iterations == len(found.times)
    assert (kinds(gang)[-1] == "Recheck") == (iterations == 15), "what is dropped is not compared again"


def test_what_the_host_needs_is_the_slowest_ranks_and_an_isolated_call_is_measured_where_asked_for() -> None:
    gang = ScriptedGang()
    gang.host = 700.0
    found = gang.evaluate(CONFIG, 7, MeasurePlan(2, 5, 5, isolated=3))
    assert kinds(gang) == ["Compile", "Check", "Measure", "MeasureIsolated", "Recheck"]
    assert found.latency is not None and (found.latency.host, found.latency.isolated) == (701.0, 911.0)
    assert found.latency.median == 301.0 and found.times == (701.0,) * 5, "pipelined, the host is the slower one"
    device = gang.evaluate(CONFIG, 7, MeasurePlan(2, 5, 5, regime=Regime.GRAPH))
    assert device.times == (101.0, 201.0, 301.0, 401.0, 501.0)
    assert device.latency is not None and device.latency.isolated is None


@pytest.mark.parametrize(
    ("regime", "dropped"), [(Regime.GRAPH, False), (Regime.PIPELINED, True), (Regime.ISOLATED, True)]
)
def test_a_config_is_dropped_for_what_it_takes_in_the_regime(regime: Regime, dropped: bool) -> None:
    gang = ScriptedGang()
    gang.host = 700.0
    found = gang.evaluate(CONFIG, 7, MeasurePlan(0, 5, 15, (600.0,) * 15, isolated=15, regime=regime))
    assert found.latency is not None and found.latency.iterations == (5 if dropped else 15)


def test_long_calls_run_at_the_clocks_that_last_before_any_of_them_is_measured() -> None:
    short, long = ScriptedGang(), ScriptedGang()
    long.scale = 10.0
    for gang in (short, long):
        gang.evaluate(CONFIG, 7, MeasurePlan(2, 5, 15, warm_from=500.0))
    measured = [[each for each in gang.asked if isinstance(each, Measure)] for gang in (short, long)]
    quick = Measure(1, 2)
    assert measured[0] == [quick, Measure(2, 5), Measure(0, 5), Measure(0, 5)]
    assert measured[1] == [quick, Measure(40, 5), Measure(0, 5), Measure(0, 5)], "60 ms of 1500 µs each"


def test_a_finalist_of_seconds_is_run_a_few_times_however_fast_the_others_are() -> None:
    gang = ScriptedGang()
    gang.scale = 1e4
    gang.evaluate(CONFIG, 7, finals_plan(30))
    assert [each for each in gang.asked if isinstance(each, Measure)] == [Measure(1, 2), Measure(3, 3)]


@pytest.mark.parametrize("wrong", [Done("same", overall=float("nan")), Done("same", element=float("inf"))])
def test_a_wrong_result_is_not_measured(wrong: Done) -> None:
    class Wrong(ScriptedGang):
        def reply(self, request: Request, rank: int) -> Reply:
            return wrong if isinstance(request, Check) and rank == 1 else super().reply(request, rank)

    gang = Wrong()
    found = gang.evaluate(CONFIG, 7, MeasurePlan())
    assert found.outcome is Outcome.WRONG_RESULT and found.reason.startswith("rank 1: error ")
    assert ("perhaps not all was written" in found.reason) is math.isnan(wrong.overall)
    assert kinds(gang) == ["Compile", "Check"]


@pytest.mark.parametrize(
    ("scale", "stagger", "pause"),
    [(1.0, 0.15, 0.02), (1e3, 0.301, 0.301), (1e5, 2.5, 2.5)],
    ids=lambda value: f"{value:g}",
)
def test_ranks_are_apart_by_a_call_but_never_so_far_that_a_wait_times_out(
    scale: float, stagger: float, pause: float
) -> None:
    """The last of two ranks is at most five seconds late, under the interpreter."""
    gang = ScriptedGang()
    gang.scale = scale
    gang.evaluate(CONFIG, 7, MeasurePlan())
    recheck = gang.asked[-1]
    assert isinstance(recheck, Recheck)
    assert (recheck.stagger, recheck.pause) == pytest.approx((stagger, pause))


@pytest.mark.parametrize("larger", [Check, Recheck])
def test_the_error_kept_is_the_largest_of_both_checks_and_of_all_ranks(larger: type[Request]) -> None:
    class Inexact(ScriptedGang):
        def reply(self, request: Request, rank: int) -> Reply:
            if isinstance(request, larger):
                return Done("same", overall=1e-4 * (2 - rank))
            return Done("same", overall=5e-5) if isinstance(request, Check | Recheck) else super().reply(request, rank)

    assert Inexact().evaluate(CONFIG, 7, MeasurePlan()).error == 2e-4


def test_each_config_is_held_to_its_own_tolerance() -> None:
    """The library's way rounds more often than a fused kernel."""

    class Coarse(ScriptedGang):
        def reply(self, request: Request, rank: int) -> Reply:
            return Done("same", overall=allowed.overall) if isinstance(request, Check) else super().reply(request, rank)

    gang = Coarse()
    found, problem = gang.workload, gang.problem
    fused = found.default_config(problem, LAPTOP)
    allowed = found.tolerance_of(problem, CONFIG, LAPTOP)
    assert gang.evaluate(CONFIG, 7, MeasurePlan()).outcome is Outcome.MEASURED
    assert gang.evaluate(fused, 7, MeasurePlan()).outcome is Outcome.WRONG_RESULT


def test_a_proof_draws_other_inputs_for_all_of_its_calls_and_ends_at_the_first_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WrongAtLast(ScriptedGang):
        def reply(self, request: Request, rank: int) -> Reply:
            return Done("same", overall=1.0 if len(self.asked) == self.wrong_at else 0.0)

        wrong_at = 0

    monkeypatch.setitem(evaluation.PROOF_CALLS, "interpreter", 13)
    gang = WrongAtLast()
    assert gang.prove(CONFIG, 7, 100.0) is None
    _, check, *rechecks = gang.asked
    assert isinstance(check, Check) and all(isinstance(each, Recheck) for each in rechecks)
    assert sum(each.bursts * each.calls for each in rechecks) >= 13 and len(rechecks) == 3
    assert len({check.seed, *(each.seed for each in rechecks)}) == 4
    gang = WrongAtLast()
    gang.wrong_at = 4
    found = gang.prove(CONFIG, 7, 100.0)
    assert found is not None and found.outcome is Outcome.WRONG_RESULT and len(gang.asked) == 4
    assert found.reason.startswith("calls back to back, inputs changing, ranks apart: rank 0: error 1.00e+00")


@pytest.mark.parametrize(("wanted", "calls"), [(3, [3, 3, 3]), (8, [5, 5, 5])])
def test_there_are_no_more_isolated_calls_than_others_before_each_look(wanted: int, calls: list[int]) -> None:
    gang = ScriptedGang()
    gang.evaluate(CONFIG, 7, MeasurePlan(isolated=wanted))
    assert [each.calls for each in gang.asked if isinstance(each, MeasureIsolated)] == calls


def test_the_time_of_a_restart_is_not_the_phase_s(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def everyone(request: Request, phase: str) -> list[Done] | Failed:
        nonlocal now
        now += 12.0
        return Failed(Outcome.CRASHED, "rank 1 died", broken=True, restart=10.0) if phase == "check" else [DONE, DONE]

    monkeypatch.setattr(evaluation, "time", SimpleNamespace(perf_counter=lambda: now))
    gang = ScriptedGang()
    found = evaluation.evaluate(everyone, gang.workload, gang.problem, LAPTOP, CONFIG, 7, MeasurePlan())
    assert found.seconds == {"compile": 12.0, "check": 2.0, evaluation.RESTART: 10.0}


class Parts(ScriptedGang):
    """Two parts, one of them as slow as a rank's number; ``fails`` is measured in vain."""

    fails = ""

    def reply(self, request: Request, rank: int) -> Reply:
        if not isinstance(request, MeasureParts):
            of_dtype = 50.0 if getattr(request, "dtype", "") == "bf16" else 80.0
            return Done("same", rates={"links": 100.0 - rank, "flops": of_dtype + rank})
        if request.only is not None and request.only == self.fails:
            return Failed(Outcome.TIMED_OUT, "planted")
        times = {"gather": 100.0 + rank, "gemm": 200.0 - rank}
        wanted = {name: time for name, time in times.items() if request.only in (None, name)}
        return Done("same", parts={name: (time,) * request.iterations for name, time in wanted.items()})


def test_of_parts_and_rates_the_slowest_rank_counts() -> None:
    gang = Parts()
    plan = MeasurePlan(2, 5, 5)
    assert {name: each.median for name, each in gang.measure_parts(plan).items()} == {"gather": 101.0, "gemm": 200.0}
    assert gang.measure_rates("bf16") == {"links": 99.0, "flops": 50.0}
    assert gang.measure_rates("fp8") == {"links": 99.0, "flops": 80.0}
    asked = len(gang.asked)
    assert gang.measure_rates("bf16")["flops"] == 50.0 and len(gang.asked) == asked, "once per element type"
    gang.fails = "gemm"
    assert gang.measure_parts(plan) == {}, "no part alone passes for all of the operation"


def test_parts_that_cannot_be_measured_are_left_out() -> None:
    class Without(ScriptedGang):
        def reply(self, request: Request, rank: int) -> Reply:
            return Failed(Outcome.OUT_OF_RESOURCES, "no memory")

    assert Without().measure_parts(MeasurePlan()) == {} == Without().measure_rates("bf16")


def test_the_slowest_rank_of_each_iteration_counts() -> None:
    slow_in_turns = [[10.0, 50.0, 10.0, 50.0, 10.0], [40.0, 20.0, 40.0, 20.0, 45.0], [11.0, 12.0, 13.0, 14.0, 15.0]]
    latency = combine(slow_in_turns)
    assert latency.median == 45.0, "of 40, 50, 40, 50 and 45"
    assert (latency.low, latency.high) == (40.0, 50.0)
    assert latency.skew == 35.0, "of 30, 38, 30, 36 and 35"
    assert latency.by_rank == (10.0, 40.0, 13.0) and latency.iterations == 5


def test_one_iteration_has_no_spread() -> None:
    latency = combine([[7.0], [9.0]])
    assert (latency.median, latency.low, latency.high, latency.skew, latency.spread) == (9.0, 9.0, 9.0, 2.0, 0.0)


def test_ranks_that_counted_differently_are_not_combined() -> None:
    with pytest.raises(ValueError, match="shorter"):
        combine([[1.0, 2.0], [1.0]])


def test_a_measured_config_forgives_the_restarts_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class InTurns(ScriptedGang):
        broken = True

        def reply(self, request: Request, rank: int) -> Reply:
            broken = Failed(Outcome.CRASHED, "CUDA error", broken=True)
            return broken if self.broken else super().reply(request, rank)

    monkeypatch.setattr(gang_module, "MOST_RESTARTS", 2)
    gang = InTurns()
    for gang.broken in (True, True, False, True, True):
        gang.evaluate(CONFIG, 1, MeasurePlan())
    assert gang.restarts == 4


def test_a_config_that_fails_and_breaks_nothing_costs_no_restart_and_dead_ranks_are_started_for_all_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gang = ScriptedGang()
    monkeypatch.setattr(gang, "reply", lambda request, rank: Failed(Outcome.OUT_OF_RESOURCES, "no memory"))
    assert gang.evaluate(CONFIG, 1, MeasurePlan()).outcome is Outcome.OUT_OF_RESOURCES and gang.restarts == 0
    monkeypatch.setattr(gang, "_alive", lambda: False)  # the processes are there, and have ended
    gang.prove(CONFIG, 1, 100.0)
    gang.turn(MeasureBarrier(1, 1))
    assert gang.restarts == 2


@pytest.mark.parametrize(
    ("world_size", "needed", "stay"), [(2, 1 << 20, True), (2, 1 << 21, True), (2, 1 << 22, False), (4, 1, False)]
)
def test_ranks_stay_for_a_problem_of_their_number_that_their_heap_holds(
    monkeypatch: pytest.MonkeyPatch, world_size: int, needed: int, stay: bool
) -> None:
    monkeypatch.setattr(type(workload("all_gather_gemm")), "heap_bytes", lambda self, problem: needed)
    gang = ScriptedGang()
    gang._heap_bytes = 1 << 21
    monkeypatch.setattr(gang, "_set_up", lambda: gang.asked.append(MeasureBarrier(1, 1)))
    problem = dataclasses.replace(gang.problem, world_size=world_size)
    gang.turn_to(gang.workload, problem)
    assert gang.problem is problem and bool(gang._processes) is stay is bool(gang.asked)
    assert gang._heap_bytes == max(needed, 1 << 21)
    assert Gang(gang.workload, problem, LAPTOP, 1 << 21)._heap_bytes == max(needed, 1 << 21)
