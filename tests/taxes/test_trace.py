"""Traced calls: what is stored, what Perfetto opens; and the twins themselves, on ranks."""

from __future__ import annotations

import json

import pytest
from compile_worker import Compilers
from every_mode import RANKS, on_cpu, whole
from fakes import stamps
from rungs import SMALL, clock_reads

from autotune.errors import InputError
from autotune.kernels.primitives import trace as device
from autotune.machine import H100, MI300X, Machine, machine
from autotune.ranks.protocol import Failed, Trace, Turn
from autotune.task import Task
from autotune.taxes.ladder import RUNGS
from autotune.taxes.measure import ladder_of
from autotune.timeline import (
    BARRIER,
    KEPT_EVENTS,
    KEPT_ROWS,
    SENDS,
    TILE,
    WAITS,
    Event,
    Traced,
    as_json,
    from_json,
    kept,
    perfetto,
)
from autotune.workloads import workload

NAMES = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode")


def test_the_kinds_are_those_of_the_device_code() -> None:
    kinds = (device.SENT, device.TILE, device.WAIT, device.PASSED)
    assert [kind.value for kind in kinds] == [SENDS, TILE, WAITS, BARRIER] == list(range(device.KINDS.value))


def test_some_programs_are_stored_and_come_back() -> None:
    found = Traced.of(1.25, [stamps(rank) for rank in range(2)])
    some = found.sampled()
    programs = {event.program for event in some.ranks[0]}
    assert 0 in programs and len(programs) <= 17 < len({event.program for event in found.ranks[0]})
    assert some.slowdown == 1.25
    assert some.end == found.end, "the program that is done last is kept"
    assert from_json(as_json({"push": some})) == {"push": some}


def test_a_long_call_is_thinned_to_what_a_page_holds() -> None:
    tiles = [Event(0, program, TILE, tile, tile, tile + 1.0) for program in range(200) for tile in range(20)]
    tiles[-1] = tiles[-1]._replace(end=99.0)
    some = Traced(1.0, (tuple(tiles), tuple(tiles))).sampled()
    assert sum(map(len, some.ranks)) <= KEPT_EVENTS and len(some.rows) <= KEPT_ROWS
    assert some.end == 99.0 and all(some.ranks)


@pytest.mark.parametrize("text", ["[", "7", '{"push": 1}', '{"": {"slowdown": 1, "ranks": [[[0, 0, 99, 0, 1, 2]]]}}'])
def test_a_damaged_timeline_is_told(text: str) -> None:
    with pytest.raises(InputError, match="damaged"):
        from_json(text)


def test_perfetto_gets_a_process_for_each_rank_and_a_thread_for_each_program() -> None:
    traced = {letter: Traced.of(1.0, [stamps(rank) for rank in range(2)]) for letter in "BD"}
    found = json.loads(json.dumps(perfetto(traced, RUNGS)))
    names = [each["args"]["name"] for each in found["traceEvents"] if each["ph"] == "M"]
    assert len(names) == 4 and names[0] == "B ours, a launch per phase, rank 0"
    spans = [each for each in found["traceEvents"] if each["ph"] == "X"]
    assert len({each["pid"] for each in spans}) == 4 and all(each["dur"] >= 0 for each in spans)
    assert len({each["tid"] for each in spans}) == 22


def test_launches_are_apart() -> None:
    two = [Event(0, program, TILE, 0, 1.0, 2.0) for program in range(4)] + [Event(1, 2, TILE, 0, 3.0, 4.0)]
    assert kept(two, 1) == {2} and kept(two, 0) == {0, 1, 2, 3} and kept(two, 2) == set()
    found = perfetto({"D": Traced(1.0, (tuple(two),))}, RUNGS)["traceEvents"]
    assert len({each["tid"] for each in found if each["ph"] == "X"}) == 5


def traced(name: str) -> tuple[tuple[Event, ...], ...]:
    """One traced call of the rung D of a small problem on two ranks."""
    here, found = machine(), workload(name)
    problem = found.problem_type.from_dict({**SMALL[name], "world_size": 2})
    task = Task(problem, here)
    default = found.default_config(task)  # on GPUs it may be the library's way, which has no rungs
    ladders = (ladder_of(found, task, config, default)[0] for config in (default, *found.first_configs(task)))
    rungs = next(ladder for ladder in ladders if "D" in ladder)
    twin = rungs["D"].replace(trace=True)
    gang, _ = RANKS.turn_to(found, problem)
    assert not isinstance(gang.turn(Turn(twin, 0, 1)), Failed)
    answers = gang.turn(Trace())
    assert not isinstance(answers, Failed)
    return Traced.of(1.0, [answer.events for answer in answers]).ranks


@pytest.mark.parametrize("name", NAMES)
def test_dataflow_is_traced_unit_by_unit(name: str) -> None:
    on_cpu()
    ranks = traced(name)
    for rank in ranks:
        kinds = {event.kind for event in rank}
        assert {SENDS, TILE, WAITS} <= kinds and BARRIER not in kinds
        tiles = [event.number for event in rank if event.kind == TILE]
        assert len(tiles) == len(set(tiles)), "every tile once"


@pytest.mark.gpu(2)
@pytest.mark.parametrize("name", NAMES)
def test_twins_leave_stamps_on_gpus(name: str) -> None:
    for rank in traced(name):
        assert {SENDS, TILE} <= {event.kind for event in rank}
        assert all(0 <= event.begin <= event.end < 1e6 for event in rank), "after the barrier, and within a second"


@pytest.mark.parametrize(
    ("target", "name"),
    [(H100, "gemm_all_reduce"), whole(H100, "flash_decode"), whole(MI300X, "flash_decode")],
    ids=lambda value: getattr(value, "arch", value),
)
def test_what_is_not_traced_has_no_instruction_of_a_trace(target: Machine, name: str, compilers: Compilers) -> None:
    """The kernels that are timed are those without stamps; the twin reads the clock."""
    plain, twin = compilers.submit(target, clock_reads, target, name).result()
    assert plain == 0 and twin >= 2
