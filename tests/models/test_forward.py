"""A forward's numbers: the work between collectives, what overlap could save, and what winners promise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes import latency_of
from model_configs import LLAMA

from autotune.device_rates import RATES
from autotune.machine import H100
from autotune.models.architecture import architecture_of
from autotune.models.forward import Call, Forward, Plan, Work, forwards
from autotune.models.gains import estimate, expected_gains, shares
from autotune.models.promise import Promise, promised
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.task import Task

MODEL = architecture_of(LLAMA)
DECODE, PREFILL = 4, 128


def gemm(rows: int, columns: int, times: int, size: int, dtype: str) -> Work:
    return Work(2.0 * rows * columns * 512 * times, (rows + columns) * 512 * size * times, dtype)


@pytest.mark.parametrize(("dtype", "size"), [("fp16", 2), ("fp8", 1), ("fp32", 4)])
def test_the_work_of_a_rank_that_communicates_nothing(dtype: str, size: int) -> None:
    plan = Plan(2, dtype, "row" if dtype == "fp8" else "none")
    decode, prefill = forwards(MODEL, plan, [DECODE, PREFILL])
    assert decode.rest == tuple(gemm(DECODE, columns, times, size, dtype)
                                for columns, times in ((384, 3), (2048, 3), (500, 1)))  # fmt: skip
    attention, head = prefill.rest
    assert attention == Work(2.0 * PREFILL**2 * 256 * 3, 4.0 * PREFILL * 256 * size * 3,
                             "bf16" if dtype == "fp8" else dtype)  # fmt: skip
    assert head == gemm(1, 500, 1, size, dtype), "of the last token alone"
    assert prefill.calls[0].problem.workload == "all_gather_gemm", "from 128 tokens on"


def test_attention_is_decoded_in_16_bits() -> None:
    for dtype, told in (("fp16", "fp16"), ("bf16", "bf16"), ("fp8", "bf16")):
        plan = Plan(2, dtype, "row" if dtype == "fp8" else "none", contexts=[4096])
        (forward,) = forwards(MODEL, plan, [DECODE])
        assert forward.calls[-1].problem.workload == "flash_decode" and forward.calls[-1].problem.dtype == told


def problems() -> list[Problem]:
    (forward,) = forwards(MODEL, Plan(2, "fp16"), [DECODE])
    return [call.problem for call in forward.calls]


def test_what_overlap_could_save_is_counted_by_calls_and_summed_over_forwards() -> None:
    one, other = problems()
    rates, problem = RATES["sm_90"], one
    moving = getattr(problem, "bytes_moved") / rates.links + rates.signal + rates.launch  # noqa: B009
    reading = getattr(problem, "bytes_read") / rates.memory + rates.launch  # noqa: B009
    found = estimate(Task(problem, H100))
    assert found.before == pytest.approx(moving + reading) and found.gain == pytest.approx(min(moving, reading))
    forward = Forward("4 tokens", (Call("a", one, 3), Call("b", other, 1)))
    whole = 3 * found.before + estimate(Task(other, H100)).before
    once = expected_gains([forward], H100)
    assert once[one] == pytest.approx(3 * found.gain / whole)
    assert expected_gains([forward] * 2, H100) == pytest.approx({each: 2 * gain for each, gain in once.items()})


def test_who_gets_too_little_of_a_budget_leaves_it_to_the_others() -> None:
    (one, other), (third, *_) = problems(), [call.problem for call in forwards(MODEL, Plan(2, "fp16"), [8])[0].calls]
    gains = {one: 0.3, other: 0.01, third: 0.6}
    assert shares(gains, [one, other, third], 90.0) == pytest.approx({third: 60.0, one: 30.0})
    assert shares(gains, [one, other, third], 3.0) == {third: 5.0}, "no search is shorter"


def test_winners_promise_what_they_take_in_the_regime_and_no_more_than_their_limits() -> None:
    tuned, untuned = problems()
    winner = SimpleNamespace(
        latency=latency_of(100.0, host=120.0),
        baselines={"bsp eager": latency_of(150.0, host=200.0), "bsp graph": latency_of(140.0, host=10.0)},
        limits={"gemm": latency_of(80.0), "all_reduce": latency_of(130.0)},
    )
    entries: dict[Problem, Any] = {tuned: SimpleNamespace(winner=winner)}
    calls = [Call("a", tuned, 3), Call("b", untuned, 2)]
    assert promised(calls, entries.get, Regime.PIPELINED) == Promise(600.0, 360.0, 360.0, untuned=2)
    assert promised(calls, entries.get, Regime.GRAPH) == Promise(420.0, 300.0, 300.0, untuned=2)
