"""A config's evaluation by the ranks' replies: its phases, times, errors. Starts no process."""

from __future__ import annotations

import math

import pytest
from fakes import LAPTOP

from autotune.config import Config
from autotune.heap.patience import polls
from autotune.outcome import Evaluation, HostOverhead, Outcome, Regime
from autotune.ranks import evaluation
from autotune.ranks.evaluation import SPIN_LIMITS, AllRanks, MeasurePlan
from autotune.ranks.gang import DEADLINES
from autotune.ranks.measure import combine
from autotune.ranks.protocol import (
    Check,
    Done,
    Failed,
    Measure,
    MeasureIsolated,
    MeasureOverhead,
    MeasureParts,
    MeasureRates,
    Recheck,
    Reply,
    Request,
)
from autotune.task import Task
from autotune.tuning.finals import finals_plan
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
PROBLEM = FOUND.problem_type(m=32, n=64, k=64, world_size=2)
CONFIG = Config({"mode": "bsp", "launch": "eager"})


class Ranks(AllRanks):
    workload, problem, machine, warm_call = FOUND, PROBLEM, LAPTOP, ""

    def __init__(self, scale: float = 1.0, host: float = 0.0) -> None:
        self.asked: list[Request] = []
        self.scale, self.host = scale, host

    def reply(self, request: Request, rank: int) -> Reply:
        if isinstance(request, Measure):
            times = tuple(self.scale * (100.0 * (i + 1) + rank) for i in range(request.iterations))
            return Done("", times=times, host=tuple(self.host + rank for _ in times) if self.host else ())
        if isinstance(request, MeasureIsolated):
            return Done("", times=tuple(900.0 + 10 * i + rank for i in range(request.calls)))
        return Done("")

    def everyone(self, request: Request, phase: str) -> list[Done] | Failed:
        self.asked.append(request)
        replies = [self.reply(request, rank) for rank in range(2)]
        failed = [reply for reply in replies if isinstance(reply, Failed)]
        return failed[0] if failed else [reply for reply in replies if isinstance(reply, Done)]

    def evaluated(self, plan: MeasurePlan, config: Config = CONFIG) -> Evaluation:
        return self.evaluate(config, 7, plan)

    def proved(self) -> Evaluation | None:
        return self.prove(CONFIG, 7, 100.0)

    @property
    def kinds(self) -> list[str]:
        return [type(request).__name__ for request in self.asked]

    @property
    def measured(self) -> list[Request]:
        return [request for request in self.asked if isinstance(request, Measure)]


def test_the_phases_of_an_evaluation() -> None:
    ranks = Ranks()
    found = ranks.evaluated(MeasurePlan(warmup=2, screen=5, iterations=15))
    assert ranks.kinds == ["Compile", "Check", "Measure", "Measure", "Measure", "Recheck"]
    _, check, *parts, recheck = ranks.asked
    assert parts == [Measure(2, 5), Measure(0, 5), Measure(0, 5)]
    assert isinstance(check, Check) and isinstance(recheck, Recheck)
    assert check.seed != recheck.seed
    assert recheck.bursts >= 3 and recheck.calls >= 3, "every kind of burst, and both slots used twice"
    assert recheck.stagger > 0 and recheck.pause > 0
    assert found.latency is not None and found.latency.iterations == 15
    assert found.times == (101.0, 201.0, 301.0, 401.0, 501.0) * 3, "of each iteration the slower rank's"


@pytest.mark.parametrize(
    ("incumbent", "host", "regime", "iterations"),
    [
        (95.0, 0.0, Regime.PIPELINED, 5), (120.0, 0.0, Regime.PIPELINED, 10), (300.0, 0.0, Regime.PIPELINED, 15),
        (None, 0.0, Regime.PIPELINED, 15), (600.0, 700.0, Regime.GRAPH, 15), (600.0, 700.0, Regime.PIPELINED, 5),
        (600.0, 700.0, Regime.ISOLATED, 5),
    ],
)  # fmt: skip
def test_only_what_is_clearly_slower_in_the_regime_is_dropped(
    incumbent: float | None, host: float, regime: Regime, iterations: int
) -> None:
    ranks = Ranks(host=host)
    times = (incumbent,) * 40 if incumbent is not None else ()
    found = ranks.evaluated(MeasurePlan(0, 5, 15, times, isolated=15 if host else 0, regime=regime))
    assert found.latency is not None and found.latency.iterations == iterations
    assert (ranks.kinds[-1] == "Recheck") == (iterations == 15), "what is dropped is not compared again"


def test_what_the_host_needs_is_the_slowest_ranks_and_an_isolated_call_is_measured_where_asked_for() -> None:
    ranks = Ranks(host=700.0)
    found = ranks.evaluated(MeasurePlan(2, 5, 5, isolated=3))
    assert ranks.kinds == ["Compile", "Check", "Measure", "MeasureIsolated", "Recheck"]
    assert found.latency is not None and (found.latency.host, found.latency.isolated) == (701.0, 911.0)
    assert found.latency.median == 301.0 and found.times == (701.0,) * 5, "pipelined, the host is the slower one"
    device = ranks.evaluated(MeasurePlan(2, 5, 5, regime=Regime.GRAPH))
    assert device.times == (101.0, 201.0, 301.0, 401.0, 501.0)
    assert device.latency is not None and device.latency.isolated is None


@pytest.mark.parametrize(
    ("scale", "plan", "measured"),
    [
        (1.0, MeasurePlan(2, 5, 15, warm_from=500.0), [(1, 2), (2, 5), (0, 5), (0, 5)]),
        (10.0, MeasurePlan(2, 5, 15, warm_from=500.0), [(1, 2), (40, 5), (0, 5), (0, 5)]),
        (1e4, finals_plan(30), [(1, 2), (3, 3)]),
    ],
    ids=["short", "60 ms of 1500 µs each", "seconds"],
)
def test_long_calls_run_at_the_clocks_that_last_and_very_long_ones_a_few_times(
    scale: float, plan: MeasurePlan, measured: list[tuple[int, int]]
) -> None:
    ranks = Ranks(scale)
    ranks.evaluated(plan)
    assert ranks.measured == [Measure(*each) for each in measured]


@pytest.mark.parametrize("wrong", [Done("", overall=float("nan")), Done("", element=float("inf"))])
def test_a_wrong_result_is_not_measured(wrong: Done) -> None:
    class Wrong(Ranks):
        def reply(self, request: Request, rank: int) -> Reply:
            return wrong if isinstance(request, Check) and rank == 1 else super().reply(request, rank)

    ranks = Wrong()
    found = ranks.evaluated(MeasurePlan())
    assert found.outcome is Outcome.WRONG_RESULT and found.reason.startswith("rank 1: ")
    assert ("perhaps not all was written" in found.reason) is math.isnan(wrong.overall)
    assert ranks.kinds == ["Compile", "Check"]


@pytest.mark.parametrize(
    ("scale", "stagger", "pause"), [(1.0, 0.15, 0.02), (1e3, 0.301, 0.301), (1e5, 2.5, 2.5)], ids=str
)
def test_ranks_are_apart_by_a_call_but_never_so_far_that_a_wait_times_out(
    scale: float, stagger: float, pause: float
) -> None:
    """The last of two ranks is at most five seconds late, under the interpreter."""
    ranks = Ranks(scale)
    ranks.evaluated(MeasurePlan())
    recheck = ranks.asked[-1]
    assert isinstance(recheck, Recheck)
    assert (recheck.stagger, recheck.pause) == pytest.approx((stagger, pause))


@pytest.mark.parametrize("larger", [Check, Recheck])
def test_the_error_kept_is_the_largest_of_both_checks_and_of_all_ranks(larger: type[Request]) -> None:
    class Inexact(Ranks):
        def reply(self, request: Request, rank: int) -> Reply:
            if isinstance(request, larger):
                return Done("", overall=1e-4 * (2 - rank))
            return Done("", overall=5e-5) if isinstance(request, Check | Recheck) else super().reply(request, rank)

    assert Inexact().evaluated(MeasurePlan()).error == 2e-4


def test_each_config_is_held_to_its_own_tolerance() -> None:
    """The library's way rounds more often than a fused kernel."""
    allowed = FOUND.tolerance_of(Task(PROBLEM, LAPTOP), CONFIG)

    class Coarse(Ranks):
        def reply(self, request: Request, rank: int) -> Reply:
            return Done("", overall=allowed.overall) if isinstance(request, Check) else super().reply(request, rank)

    fused = FOUND.default_config(Task(PROBLEM, LAPTOP))
    assert Coarse().evaluated(MeasurePlan()).outcome is Outcome.MEASURED
    assert Coarse().evaluated(MeasurePlan(), fused).outcome is Outcome.WRONG_RESULT


def test_a_proof_draws_other_inputs_for_all_of_its_calls_and_ends_at_the_first_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WrongAtLast(Ranks):
        def reply(self, request: Request, rank: int) -> Reply:
            return Done("", overall=1.0 if len(self.asked) == self.wrong_at else 0.0)

        wrong_at = 0

    monkeypatch.setitem(evaluation.PROOF_CALLS, "interpreter", 13)
    ranks = WrongAtLast()
    assert ranks.proved() is None
    _, check, *rechecks = ranks.asked
    assert isinstance(check, Check)
    calls = [(each.seed, each.bursts * each.calls) for each in rechecks if isinstance(each, Recheck)]
    assert len(calls) == len(rechecks) == 3 and sum(count for _, count in calls) >= 13
    assert len({check.seed, *(seed for seed, _ in calls)}) == 4
    ranks = WrongAtLast()
    ranks.wrong_at = 4
    found = ranks.proved()
    assert found is not None and found.outcome is Outcome.WRONG_RESULT and len(ranks.asked) == 4


@pytest.mark.parametrize("fails", ["", "gemm", "rates"])
def test_of_parts_and_rates_the_slowest_rank_counts_and_a_failure_leaves_all_out(fails: str) -> None:
    class Parts(Ranks):
        def reply(self, request: Request, rank: int) -> Reply:
            if isinstance(request, MeasureRates):
                failed = Failed(Outcome.OUT_OF_RESOURCES, "no memory")
                return failed if fails else Done("", rates={"links": 100.0 - rank, "flops": 50.0 + rank})
            assert isinstance(request, MeasureParts)
            if fails and request.only == fails:
                return Failed(Outcome.TIMED_OUT, "planted")
            times = {"gather": 100.0 + rank, "gemm": 200.0 - rank}
            wanted = {name: time for name, time in times.items() if request.only in (None, name)}
            return Done("", parts={name: (time,) * request.iterations for name, time in wanted.items()})

    parts = Parts().measure_parts(MeasurePlan(2, 5, 5))
    medians = {name: each.median for name, each in parts.items()}
    assert medians == ({} if fails == "gemm" else {"gather": 101.0, "gemm": 200.0})
    assert Parts().measure_rates("bf16") == ({} if fails else {"links": 99.0, "flops": 50.0})


@pytest.mark.parametrize(
    ("answers", "price"),
    [
        ([Done("", times=(9.0, 11.0, 30.0), host=(6.0,)), Done("", times=(8.0, 14.0, 15.0), host=(5.0,))],
         HostOverhead(6.0, 14.0)),
        ([Done("", times=(-2.0, -1.0, 0.5), host=(-0.1,))], HostOverhead(0.0, 0.0)),
        ([Done(""), Done("")], None),
        (Failed(Outcome.CRASHED, "rank 1 died"), None),
    ],
    ids=["the slowest rank", "never less than nothing", "no operator", "a failure"],
)  # fmt: skip
def test_the_slowest_rank_s_door_counts(answers: list[Done] | Failed, price: HostOverhead | None) -> None:
    class Doors(Ranks):
        warm_call = "a door"

        def everyone(self, request: Request, phase: str) -> list[Done] | Failed:
            self.asked.append(request)
            return answers

    ranks = Doors()
    assert ranks.measure_overhead() == price
    assert [each.warm_call for each in ranks.asked if isinstance(each, MeasureOverhead)] == ["a door"]


def test_the_slowest_rank_of_each_iteration_counts() -> None:
    slow_in_turns = [[10.0, 50.0, 10.0, 50.0, 10.0], [40.0, 20.0, 40.0, 20.0, 45.0], [11.0, 12.0, 13.0, 14.0, 15.0]]
    latency = combine(slow_in_turns)
    assert latency.median == 45.0, "of 40, 50, 40, 50 and 45"
    assert (latency.low, latency.high) == (40.0, 50.0)
    assert latency.skew == 35.0, "of 30, 38, 30, 36 and 35"
    assert latency.by_rank == (10.0, 40.0, 13.0) and latency.iterations == 5
    once = combine([[7.0], [9.0]])
    assert (once.median, once.low, once.high, once.skew, once.spread) == (9.0, 9.0, 9.0, 2.0, 0.0)
    with pytest.raises(ValueError):
        combine([[1.0, 2.0], [1.0]])


@pytest.mark.parametrize("kind", SPIN_LIMITS)
def test_waits_time_out_long_before_their_ranks_are_ended(kind: str) -> None:
    deadlines = DEADLINES[kind]
    soonest = min(deadlines["check"], deadlines["measure"])
    assert SPIN_LIMITS[kind] < polls(soonest / 2, interpreted=kind == "interpreter")
