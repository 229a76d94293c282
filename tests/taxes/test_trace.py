"""Traced calls: what barriers cost, what is stored, what Perfetto opens; and the twins themselves, on ranks."""

from __future__ import annotations

import json
import statistics

import pytest
from compile_worker import Compilers
from every_mode import RANKS, on_cpu, whole
from fakes import stamps
from rungs import SMALL, clock_reads

from autotune.kernels.primitives import trace as device
from autotune.machine import H100, MI300X, Machine, machine
from autotune.ranks.protocol import Failed, Trace, Turn
from autotune.taxes.ladder import RUNGS
from autotune.taxes.measure import ladder_of
from autotune.taxes.trace import BARRIER, ENDS, KINDS, SENDS, TILE, WAITS, Event, Traced, barrier_costs, kept, perfetto
from autotune.workloads import workload

NAMES = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode")


def test_the_kinds_are_those_of_the_device_code() -> None:
    kinds = (device.SENT, device.TILE, device.WAIT, device.ENDED, device.PASSED)
    assert [kind.value for kind in kinds] == [SENDS, TILE, WAITS, ENDS, BARRIER] == list(range(device.KINDS.value))
    assert len(KINDS) == device.KINDS.value


def test_skew_and_tail_are_what_was_planted() -> None:
    """Ranks end their phase at 10, 11, 12; all pass at 20. A rank's programs end a microsecond apart."""
    found = Traced.of(1.1, [stamps(rank) for rank in range(3)])
    assert found.skew == pytest.approx(statistics.fmean([10, 9, 8]) - 8) and found.tail == pytest.approx(0.5)
    free = [[each for each in stamps(rank) if each[2] < ENDS] for rank in range(3)]
    assert (Traced.of(1.0, free).skew, Traced.of(1.0, free).tail) == (None, None), "no barrier, no cost of one"
    assert barrier_costs([]) == (None, None)


def test_some_programs_are_stored_and_come_back() -> None:
    found = Traced.of(1.25, [stamps(rank) for rank in range(2)])
    some = found.sampled()
    programs = {event.program for event in some.ranks[0]}
    assert 0 in programs and len(programs) <= 16 < len({event.program for event in found.ranks[0]})
    assert (some.skew, some.tail, some.slowdown) == (found.skew, found.tail, 1.25), "those of all programs"
    assert Traced.from_dict(json.loads(json.dumps(some.as_dict()))) == some
    with pytest.raises(ValueError, match="99 is not a kind"):
        Traced.from_dict({"slowdown": 1, "skew": None, "tail": None, "ranks": [[[0, 0, 99, 0, 1.0, 2.0]]]})


def test_perfetto_gets_a_process_for_each_rank_and_a_thread_for_each_program() -> None:
    traced = {letter: Traced.of(1.0, [stamps(rank) for rank in range(2)]) for letter in "SD"}
    found = json.loads(json.dumps(perfetto(traced, RUNGS)))
    names = [each["args"]["name"] for each in found["traceEvents"] if each["ph"] == "M"]
    assert len(names) == 4 and names[0] == "S one launch, barriers, rank 0"
    spans = [each for each in found["traceEvents"] if each["ph"] == "X"]
    assert len({each["pid"] for each in spans}) == 4 and all(each["dur"] >= 0 for each in spans)
    assert len({each["tid"] for each in spans}) == 22
    assert sum(each["ph"] == "i" for each in found["traceEvents"]) == 8


def test_launches_are_apart_and_a_rank_waits_until_its_first_program_passes() -> None:
    two = [Event(0, program, TILE, 0, 1.0, 2.0) for program in range(4)] + [Event(1, 2, TILE, 0, 3.0, 4.0)]
    assert kept(two, 1) == {2} and kept(two, 0) == {0, 1, 2, 3}
    found = perfetto({"S": Traced(1.0, (tuple(two),))}, RUNGS)["traceEvents"]
    assert len({each["tid"] for each in found if each["ph"] == "X"}) == 5
    ranks = [
        [Event(0, 0, ENDS, 0, end, end), *(Event(0, n, BARRIER, 0, end, at) for n, at in enumerate(passed))]
        for end, passed in ((10.0, (20.0, 25.0)), (12.0, (20.0, 20.0)))
    ]
    assert barrier_costs(ranks) == (pytest.approx(1.0), pytest.approx(0.0))


def traced(name: str, letter: str) -> tuple[tuple[Event, ...], ...]:
    """One traced call of a rung of a small problem on two ranks."""
    here, found = machine(), workload(name)
    problem = found.problem_type.from_dict({**SMALL[name], "world_size": 2})
    default = found.default_config(problem, here)
    rungs, _ = ladder_of(found, problem, here, default, default)
    twin = rungs[letter].replace(trace=True)
    gang, _ = RANKS.turn_to(found, problem)
    assert not isinstance(gang.turn(Turn(twin, 0, 1)), Failed)
    answers = gang.turn(Trace())
    assert not isinstance(answers, Failed)
    return Traced.of(1.0, [answer.events for answer in answers]).ranks


@pytest.mark.parametrize("name", NAMES)
def test_behind_a_barrier_nothing_begins_before_all_ranks_have_ended_the_phase(name: str) -> None:
    """The rung S does what it says: under the interpreter all ranks have one clock."""
    on_cpu()
    ranks = traced(name, "S")
    for rank in ranks:
        assert rank and all(0 < event.begin <= event.end for event in rank)
    for number in {event.number for rank in ranks for event in rank if event.kind == ENDS}:
        last = max(event.begin for rank in ranks for event in rank if event.kind == ENDS and event.number == number)
        passed = [event.end for rank in ranks for event in rank if event.kind == BARRIER and event.number == number]
        assert passed and min(passed) >= last
    computed = [event for rank in ranks for event in rank if event.kind == TILE]
    sent = [event for rank in ranks for event in rank if event.kind == SENDS]
    if name == "all_gather_gemm":
        assert min(event.begin for event in computed) >= max(event.end for event in sent)
    elif sent:
        assert min(event.begin for event in sent) >= max(event.end for event in computed)


@pytest.mark.parametrize("name", NAMES)
def test_dataflow_is_traced_unit_by_unit(name: str) -> None:
    on_cpu()
    ranks = traced(name, "D")
    for rank in ranks:
        kinds = {event.kind for event in rank}
        assert {SENDS, TILE, WAITS} <= kinds and not kinds & {ENDS, BARRIER}
        tiles = [event.number for event in rank if event.kind == TILE]
        assert len(tiles) == len(set(tiles)), "every tile once"


@pytest.mark.gpu(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("letter", ["S", "D"])
def test_twins_leave_stamps_on_gpus(name: str, letter: str) -> None:
    ranks = traced(name, letter)
    for rank in ranks:
        assert {SENDS, TILE} <= {event.kind for event in rank}
        assert all(0 <= event.begin <= event.end < 1e6 for event in rank), "after the barrier, and within a second"
    skew, tail = barrier_costs(ranks)
    assert (skew is None) == (letter == "D") and (skew is None or skew >= 0) and (tail is None or tail >= 0)


@pytest.mark.parametrize("target", [H100, whole(MI300X)], ids=lambda target: target.arch)
def test_what_is_not_traced_has_no_instruction_of_a_trace(target: Machine, compilers: Compilers) -> None:
    """The kernels that are timed are those without stamps; the twin reads the clock."""
    plain, twin = compilers.submit(target, clock_reads, target).result()
    assert plain == 0 and twin >= 2
