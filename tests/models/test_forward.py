"""A forward's numbers: the work between collectives, what overlap could save, what winners promise; its sizes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import latency_of
from hypothesis import given, settings
from hypothesis import strategies as some
from model_configs import LLAMA, MIXTRAL

import autotune
from autotune.compiled.collecting import Collected
from autotune.device_rates import RATES
from autotune.fleet.problem_list import parse_list
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.gemm_all_reduce_norm.problem import GemmAllReduceNorm
from autotune.machine import H100
from autotune.models.architecture import architecture_of
from autotune.models.forward import ATTENTION, ROUTING, Call, Forward, Plan, Work, forwards, places
from autotune.models.gains import BESIDE, estimate, estimated, expected_gains, rest, shares
from autotune.models.promise import Measured, Promise, Sums
from autotune.models.spans import kept, spans, to_search
from autotune.outcome import Latency, Regime
from autotune.problem import Problem
from autotune.sizes import WIDEST, few
from autotune.task import Task
from autotune.tuning.effort import SHORTEST

MODEL = architecture_of(LLAMA)
DECODE, PREFILL = 4, 128


def gemm(rows: int, columns: int, times: int, size: int, dtype: str) -> Work:
    return Work(2.0 * rows * columns * 512 * times, (rows + columns) * 512 * size * times, dtype)


@pytest.mark.parametrize(("dtype", "size"), [("fp16", 2), ("fp8", 1), ("fp32", 4)])
def test_the_work_of_a_rank_that_communicates_nothing(dtype: str, size: int) -> None:
    plan = Plan(2, dtype, "row" if dtype == "fp8" else "none")
    decode, prefill = forwards(MODEL, plan, [DECODE, PREFILL])
    *gemms, small = decode.rest
    assert gemms == [gemm(DECODE, columns, times, size, dtype)
                     for columns, times in ((384, 3), (2048, 3), (500, 1))]  # fmt: skip
    attention, head, elementwise = prefill.rest
    unscaled, wide = ("bf16", 2) if dtype == "fp8" else (dtype, size)
    assert attention == Work(2.0 * PREFILL**2 * 256 * 3 / ATTENTION, 4.0 * PREFILL * 256 * size * 3, unscaled)
    assert small == Work(0.0, 3 * (8.0 * DECODE * 512 + 3.0 * DECODE * 1024) * wide, unscaled, 3 * 4)
    norms, activations = 8.0 * PREFILL / 2 * 512, 3.0 * PREFILL * 1024
    assert elementwise == Work(0.0, 3 * (norms + activations) * wide, unscaled, 3 * 3)
    assert head == gemm(1, 500, 1, size, dtype), "of the last token alone"
    assert prefill.calls[0].problem.workload == "all_gather_gemm", "from 128 tokens on"


def test_a_router_is_as_long_as_the_launches_of_its_kernels() -> None:
    mixture = architecture_of({**LLAMA, **MIXTRAL})
    for tokens, rows in ((DECODE, DECODE), (PREFILL, PREFILL // 2)):
        *_, router, _ = forwards(mixture, Plan(2, "fp8", "row"), [tokens])[0].rest
        alone = gemm(rows, 8, 3, 2, "bf16")
        assert router == replace(alone, launches=ROUTING * 3), "the router is not quantised"
        rates = RATES["sm_90"]
        one, other = (rest(Forward("", (), (work,)), rates) for work in (router, alone))
        assert one - other == pytest.approx(3 * ROUTING * rates.launch)


@pytest.fixture(autouse=True)
def without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.models.promise.NCCL_GAP", 0.0)


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


def test_each_gets_the_least_and_the_rest_goes_by_gain() -> None:
    (one, other), (third, *_) = problems(), [call.problem for call in forwards(MODEL, Plan(2, "fp16"), [8])[0].calls]
    gains = {one: 0.3, other: 0.01, third: 0.6}
    found = shares(gains, [one, other, third], 90.0)
    assert list(found) == [third, one, other]
    assert found[other] == pytest.approx(SHORTEST, abs=1.0)
    assert found[third] - SHORTEST == pytest.approx(2 * (found[one] - SHORTEST))
    assert sum(found.values()) + len(found) * BESIDE == pytest.approx(90.0)
    assert set(shares(gains, [one, other, third], 2 * (SHORTEST + BESIDE))) == {third, one}
    assert shares(gains, [one, other, third], 1.0) == {third: SHORTEST}, "no search is shorter"


def tuned(
    latency: Latency, baselines: dict[str, Latency], limits: dict[str, Latency] | None = None, verified: bool = False
) -> Any:  # fmt: skip
    config = {"mode": "push"}
    winner = SimpleNamespace(
        config=config, latency=latency, baselines=baselines, limits=limits or {}, verified=verified
    )
    return SimpleNamespace(winner=winner)


def measured(entries: dict[Problem, Any], found: Regime = Regime.GRAPH, run: Regime | None = None) -> Measured:
    return Measured(entries.get, H100, found, run or found)


def eager_and_captured(entries: dict[Problem, Any]) -> tuple[Measured, Measured]:
    return measured(entries, Regime.PIPELINED), measured(entries, Regime.PIPELINED, Regime.GRAPH)


def test_winners_promise_what_they_take_in_the_regime_and_no_more_than_their_limits() -> None:
    one, untuned = problems()
    baselines = {"bsp eager": latency_of(150.0, host=200.0), "bsp graph": latency_of(140.0, host=10.0)}
    limits = {"gemm": latency_of(80.0), "all_reduce": latency_of(130.0)}
    entries = {one: tuned(latency_of(100.0, host=120.0), baselines, limits)}
    calls = [Call("a", one, 3), Call("b", untuned, 2)]
    eager, graph = eager_and_captured(entries)
    assert eager.promised(calls) == Promise(600.0, 360.0, 300.0, untuned=2)
    assert graph.promised(calls) == Promise(420.0, 300.0, 300.0, untuned=2)


def test_the_host_of_one_call_runs_ahead_during_another() -> None:
    """The larger sum counts, not the sum of what is larger call by call."""
    one, other = problems()
    entries = {
        one: tuned(latency_of(10.0, host=30.0), {"bsp eager": latency_of(20.0, host=50.0)}),
        other: tuned(latency_of(90.0, host=30.0), {"bsp eager": latency_of(100.0, host=50.0)}),
    }
    calls = [Call("a", one, 1), Call("b", other, 1)]
    assert measured(entries, Regime.PIPELINED).promised(calls) == Promise(120.0, 100.0, 100.0)


def test_a_time_of_the_host_stands_beside_no_time_of_the_device() -> None:
    one, _ = problems()
    entries = {one: tuned(latency_of(29.0), {"bsp eager": latency_of(31.0, host=422.0)})}
    for regime in Regime:
        promise = measured(entries, Regime.PIPELINED, regime).promised([Call("a", one, 1)])
        assert promise == Promise(31.0, 29.0, 29.0)


def norm_of(problem: Any) -> Problem:
    return GemmAllReduceNorm(m=problem.m, n=problem.n, k=problem.k, dtype="fp16", world_size=2)


def test_of_alternatives_the_best_counts_with_what_it_leaves_outside() -> None:
    plain, other = problems()
    normed = norm_of(plain)
    calls = [Call("", each, 2, place="a") for each in (plain, normed)]
    small, large = (
        tuned(latency_of(30.0), {"bsp": latency_of(40.0)}),
        tuned(latency_of(41.0), {"bsp": latency_of(46.0)}),
    )
    found = measured({plain: small, normed: large}).totals(calls)
    assert found.taken == {(calls[0],)} and (found.before, found.after) == (Sums(92.0), Sums(72.0)), "6 µs of norm"
    assert measured({plain: small}).promised(calls) == Promise(80.0, 60.0, 60.0)
    slower = {plain: tuned(latency_of(41.0), {"bsp": latency_of(40.0)}), normed: large}
    assert measured(slower).promised(calls) == Promise(92.0, 82.0, 82.0)
    worse = {each: tuned(latency_of(41.0), {"bsp": latency_of(40.0)}) for each in (plain, normed)}
    assert measured(worse).promised(calls).gain == 0, "the compiler leaves it"
    alone = [Call("", plain, 2), Call("", other, 1)]
    together, apart = (expected_gains([Forward("", tuple(each))], H100)[plain] for each in (calls, alone))
    assert together > apart


def test_a_graph_runs_what_the_compiler_took_for_eager_calls() -> None:
    """Two of a Qwen3's operators at m=128, as 2 x H100 measured them."""
    plain, _ = problems()
    normed = norm_of(plain)
    entries = {
        plain: tuned(latency_of(62.9, host=13.1), {"bsp eager": latency_of(76.1, host=48.7)}),
        normed: tuned(latency_of(69.9, host=19.6), {"bsp eager": latency_of(80.8, host=98.5)}),
    }
    calls = [Call("", each, 4, place="a") for each in (plain, normed)]
    eager, graph = eager_and_captured(entries)
    assert eager.totals(calls).taken == graph.totals(calls).taken == {(calls[1],)}
    assert eager.promised(calls) == Promise(4 * 98.5, 4 * 69.9, 4 * 69.9)
    assert graph.promised(calls) == Promise(4 * 80.8, 4 * 69.9, 4 * 69.9)


def test_an_outlier_of_the_host_is_not_the_forwards() -> None:
    """Attention's output of that model: one baseline's host took 422.7 µs, and the pass took its way for that."""
    plain, residual = (GemmAllReduce(m=128, n=5120, k=8192, residual=each, world_size=2) for each in (False, True))
    normed = norm_of(plain)
    entries = {
        plain: tuned(latency_of(28.9, host=22.2), {"bsp eager": latency_of(39.7, host=62.4)}),
        residual: tuned(latency_of(29.4, host=22.7), {"bsp eager": latency_of(42.8, host=422.7)}),
        normed: tuned(latency_of(30.2, host=25.5), {"bsp fused norm eager": latency_of(43.3, host=87.0)}),
    }
    calls = [Call("", each, 4, place="a") for each in entries]
    eager, graph = eager_and_captured(entries)
    assert eager.totals(calls).taken == {(calls[1],)}
    assert (eager.promised(calls).library, graph.promised(calls).library) == (4 * 87.0, 4 * 43.3)
    assert graph.promised(calls).winners == pytest.approx(4 * 29.9), "and half a microsecond of norm"


def test_the_library_gathers_once_for_several_gemms() -> None:
    one, other = (AllGatherGemm(m=256, n=n, k=512, world_size=2) for n in (512, 128))
    first = AllGatherGemm(m=256, n=512, k=512, world_size=2, gathered=True)
    limits = {"all_gather": latency_of(30.0), "gemm": latency_of(10.0)}
    times = {one: 40.0, other: 40.0, first: 40.0}
    entries = {each: tuned(latency_of(35.0), {"bsp": latency_of(time)}, limits) for each, time in times.items()}
    calls = [Call("", one, 1, "qkv", 1), Call("", other, 2, "qkv", 1), Call("", first, 1, "qkv")]
    found = measured(entries).totals(calls)
    assert found.before == Sums(60.0) and found.taken == {(calls[2],)} and found.after == Sums(55.0)
    (place,) = places(calls)
    alone = estimate(Task(one, H100))
    assert estimated(place, H100).before < alone.before + 2 * estimate(Task(other, H100)).before


@pytest.mark.parametrize("mode", ["push", "bsp"])
def test_in_a_captured_forward_nccls_kernels_cost_their_neighbours_once_a_collective(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (AllGatherGemm(m=256, n=n, k=512, world_size=2) for n in (512, 128))
    entry = tuned(
        latency_of(9.0), {"bsp": latency_of(40.0)}, {"all_gather": latency_of(30.0), "gemm": latency_of(10.0)}
    )
    entry.winner.config["mode"] = mode
    calls = [Call("", one, 1, "qkv", 1), Call("", other, 2, "qkv", 1), Call("", problems()[0], 5)]
    captured, eager = (
        Measured(lambda problem: entry, H100, Regime.GRAPH, run) for run in (Regime.GRAPH, Regime.PIPELINED)
    )
    before = [(each.totals(calls).before.device, each.totals(calls).after.device) for each in (captured, eager)]
    monkeypatch.setattr("autotune.models.promise.NCCL_GAP", 2.0)
    after = [(each.totals(calls).before.device, each.totals(calls).after.device) for each in (captured, eager)]
    more = [(one - first, other - second) for (one, other), (first, second) in zip(after, before, strict=True)]
    assert more == [(pytest.approx(2.0 * 6), pytest.approx(2.0 * 8 * (mode == "bsp"))), (0.0, 0.0)]


def test_where_ranks_have_all_tokens_the_library_gathers_none_for_experts_and_ours_their_results() -> None:
    mixture = architecture_of({**LLAMA, **MIXTRAL})
    limits = {"all_to_all": latency_of(12.0), "gemm": latency_of(88.0)}
    entry = tuned(latency_of(80.0), {"bsp": latency_of(100.0)}, limits)

    def promised(tokens: int, sequence_parallel_from: int | None) -> Promise:
        plan = Plan(2, "bf16", sequence_parallel_from=sequence_parallel_from)
        calls = [each for each in forwards(mixture, plan, [tokens])[0].calls if "experts" in each.layer]
        return measured({each.problem: entry for each in calls}).promised(calls)

    assert promised(DECODE, DECODE) == Promise(600.0, 480.0, 480.0), "the operators alone, where ranks share them out"
    decode, prefill = promised(DECODE, None), promised(1 << 14, None)
    assert decode.library == pytest.approx(3 * (200.0 - 2 * 12.0), rel=1e-2)
    assert decode.winners == decode.limits == prefill.winners == pytest.approx(3 * (160.0 + 12.0))
    assert 3 * (200.0 - 12.0) < prefill.library < 600.0, "an all-reduce sends as many bytes"


def test_a_way_contends_if_a_search_may_make_it_the_best() -> None:
    plain, _ = problems()
    normed = norm_of(plain)
    place = places([Call("", each, 2, place="a") for each in (plain, normed)])[0]

    def contenders(winner: float, verified: bool) -> set[Problem]:
        entries = {
            plain: tuned(latency_of(winner), {"bsp": latency_of(40.0)}, verified=verified),
            normed: tuned(latency_of(36.0), {"bsp": latency_of(46.0)}, verified=True),
        }
        return measured(entries).contenders(place)

    assert contenders(38.0, verified=True) == {normed}, "2 of 10 µs saved"
    assert contenders(32.0, verified=True) == {plain, normed}
    assert contenders(32.0, verified=False) == {normed}, "no search makes it better"
    assert contenders(25.0, verified=False) == {plain}


TIMES = some.floats(0.1, 1e4)
LATENCIES = some.builds(
    latency_of, TIMES, host=some.none() | TIMES, isolated=some.none() | TIMES
)  # fmt: skip
ENTRIES = some.builds(
    tuned,
    LATENCIES,
    some.dictionaries(some.sampled_from(("bsp eager", "bsp graph")), LATENCIES),
    verified=some.booleans(),
)


@settings(deadline=None)
@given(some.data())
def test_one_way_of_a_place_counts_whatever_was_measured(data: some.DataObject) -> None:
    one, other = problems()
    known = [one, other, norm_of(one), norm_of(other)]
    ways = some.tuples(some.sampled_from(("", "a", "b")), some.integers(0, 2))
    calls = [
        Call(str(number), data.draw(some.sampled_from(known)), data.draw(some.integers(0, 9)), *way)
        for number, way in enumerate(data.draw(some.lists(ways, max_size=8)))
    ]
    entries: dict[Problem, Any] = data.draw(some.dictionaries(some.sampled_from(known), ENTRIES))
    for regime in Regime:
        made = measured(entries, Regime.PIPELINED, regime)
        found, promise = made.totals(calls), made.promised(calls)
        for sums, told in ((found.before, promise.library), (found.after, promise.winners)):
            assert told >= sums.device >= 0 and (regime is Regime.GRAPH or told >= sums.host >= 0)
        assert promise.limits <= promise.winners
        taken = [place for place in places(calls) if found.taken.intersection(place)]
        assert all(len(found.taken.intersection(place)) == 1 for place in taken)
        assert [*taken, *found.untuned] == sorted(places(calls), key=lambda place: place in found.untuned)
        for place in taken:
            choice = made.choice(place)
            assert choice is not None and {call.problem for call in choice.way} <= made.contenders(place)


@settings(deadline=None)
@given(some.lists(some.tuples(some.integers(1, 9), ENTRIES), min_size=1, max_size=4), some.sampled_from(Regime))
def test_a_forward_takes_no_less_than_host_and_device(tuned: list[tuple[int, Any]], regime: Regime) -> None:
    """Of those calls whose host was timed by the library and by ours: before and after are told alike."""
    entries = {GemmAllReduce(m=m, n=64, k=64, world_size=2): entry for m, (_, entry) in enumerate(tuned, 1)}
    calls = [Call("", problem, count) for problem, (count, _) in zip(entries, tuned, strict=True)]
    found = measured(entries, Regime.PIPELINED, regime).promised(calls)
    latencies = [(count, entry.winner.latency, entry.winner.baselines.values()) for count, entry in tuned]
    device = sum(count * ours.median for count, ours, _ in latencies)
    least = sum(count * min(each.median for each in (ours, *theirs)) for count, ours, theirs in latencies)
    assert found.winners > 0.999 * device and found.library > 0.999 * least
    if regime is Regime.GRAPH:
        assert found.winners == pytest.approx(device)
        return
    timed = [(count, ours.host) for count, ours, theirs in latencies if all(each.host for each in (ours, *theirs))]
    assert found.winners > 0.999 * sum(count * host for count, host in timed if host)


def reduced(m: int, n: int = 64) -> Problem:
    return autotune.GemmAllReduce(m=m, n=n, k=64, world_size=2)


def decoded(batch: int, kv_len: int) -> Problem:
    return autotune.FlashDecode(batch=batch, q_heads=8, kv_heads=1, head_dim=128, kv_len=kv_len, world_size=2)


def sizes_of(problems: object) -> list[int]:
    return sorted(each.m for each in problems)  # type: ignore[attr-defined]


def test_a_span_goes_along_the_size_that_varies_most() -> None:
    problems = [decoded(batch, kv_len) for batch in range(1, 9) for kv_len in (1024, 4096)]
    found = spans([*problems, reduced(4), reduced(8), reduced(8, n=32)])
    assert sorted(list(span) for span in found) == [[*range(1, 9)], [*range(1, 9)], [4, 8], [8]]
    assert {each.batch for each in to_search(problems)} == {1, 4, 8}  # type: ignore[attr-defined]


@settings(deadline=None)
@given(some.lists(some.integers(1, 1 << 16), min_size=1, max_size=300, unique=True))
def test_of_many_sizes_few_are_kept_and_the_others_lie_between_them(sizes: list[int]) -> None:
    stands_for = kept(map(reduced, sizes))
    chosen = sizes_of({*stands_for.values()})
    assert len(chosen) <= 3 * len(few(sizes)) and {*few(sizes)} <= {*chosen} <= {*sizes}
    assert few(chosen) == few(sizes), "whoever reads the list chooses the same"
    for small, large in itertools.pairwise(chosen):
        assert large <= WIDEST * small or not any(small < size < large for size in sizes)


def test_what_a_serving_run_called_becomes_a_short_list_with_all_its_calls() -> None:
    rng = random.Random(46)
    problems = Collected({reduced(m): rng.randrange(1, 9) for m in rng.sample(range(1, 8193), 300)})
    asked = parse_list(problems.text())
    searched = sizes_of(each.problem for each in asked if each.search)
    verified = sizes_of(each.problem for each in asked if not each.search)
    seen = sizes_of(problems)
    assert searched == few(seen) and len(searched) <= 9 and len(verified) <= 2 * len(searched)
    assert {*verified} <= {*seen} and sum(m % 2 for m in verified) > len(verified) / 2, "off the grid, and really seen"
    assert sum(each.calls for each in asked) == problems.total()


def test_sizes_of_mixtures_and_batches_stand_in_one_entry() -> None:
    mixed = [
        autotune.MoeDispatchGemm(tokens=tokens, hidden=64, experts=4, top_k=2, width=32, world_size=2)
        for tokens in (1, 2, 3, 8)
    ]
    problems = Collected(dict.fromkeys((*mixed, *(decoded(batch, 1024) for batch in (1, 4, 16))), 5))
    text = problems.text()
    assert {each.problem for each in parse_list(text)} == {*problems} and text.count("workload:") == 3
