"""Workers that share a list: everything is done once, whoever dies, fails or is cut off; a list's state."""

from __future__ import annotations

import dataclasses
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes import EIGHT_GPUS, begun, far_lease
from small_fleet import DONE, NOT_MEASURED, WORKLOAD, Host, asked, dead_lease, lease, states

import autotune.db.lease as leases
from autotune.db import Lease, Store
from autotune.db.engines.database import Database
from autotune.errors import FleetError, GangError, StoreError
from autotune.fleet import standing
from autotune.fleet.standing import rows_of
from autotune.task import Task

FOUR_GPUS = dataclasses.replace(EIGHT_GPUS, gpus=4)
OTHER = dataclasses.replace(EIGHT_GPUS, device="AMD Instinct MI300X")


def test_all_is_tuned_once_the_widest_first_and_a_second_run_tunes_nothing(url: str) -> None:
    problems = [asked(16), asked(32, 8), asked(64)]
    host = Host(url)
    assert host.run(*problems) == ["done"] * 3
    assert host.started == [32, 16, 64]
    assert sum(line.startswith("done in ") for line in host.told) == 3
    again = Host(url)
    assert again.run(*problems) == ["done"] * 3 and again.started == again.told == []


def test_sizes_are_verified_once_those_around_them_are_searched_wherever_that_is(url: str) -> None:
    searched, between = [asked(16), asked(64)], [asked(32, search=False), asked(48, search=False)]
    order: list[int] = []

    def slow(m: int) -> str:
        time.sleep(0.05)
        order.append(m)
        return DONE

    hosts = [Host(url, slow) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for states_at_its_end in pool.map(lambda host: host.run(*between, *searched), hosts):
            assert states_at_its_end == ["done"] * 4
    assert {*order[:2]} == {16, 64} and {*order[2:]} == {32, 48} and len(order) == 4


def test_where_a_search_fails_its_neighbours_are_verified_all_the_same(path: str) -> None:
    host = Host(path, lambda m: NOT_MEASURED if m == 64 else DONE)
    assert host.run(asked(32, search=False), asked(64), asked(16)) == ["done", "failed", "done"]


def test_hosts_that_share_a_list_never_tune_a_problem_twice(url: str) -> None:
    problems = [asked(16 * m) for m in range(1, 13)]
    hosts = [Host(url, lambda m: time.sleep(0.02) or DONE) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for states_at_its_end in pool.map(lambda host: host.run(*problems), hosts):
            assert states_at_its_end == ["done"] * 12, "each waits for the others' last problem"
    assert Counter(m for host in hosts for m in host.started) == {16 * m: 1 for m in range(1, 13)}


def test_a_problem_taken_between_look_and_claim_is_passed_by(path: str) -> None:
    host, other = Host(path), Host(path)
    problems = [asked(16), asked(32), asked(64)]

    def act(m: int) -> str:
        if m == 16:  # the next look is at what it leaves
            other.run(problems[1])
        return DONE

    host.act = act
    assert host.run(*problems) == ["done"] * 3
    assert (host.started, other.started) == ([16, 64], [32])


@pytest.mark.parametrize("error", [GangError("the ranks did not start"), ZeroDivisionError("a bug"), None])
def test_a_failure_is_noted_and_left_to_other_hosts(path: str, error: Exception | None) -> None:
    def fails(m: int) -> str:
        if m == 16 and error is not None:
            raise error
        return NOT_MEASURED if m == 16 else DONE

    problems, host = [asked(16), asked(32)], Host(path, fails)
    assert host.run(*problems) == ["failed", "done"] and host.started == [16, 32]
    with Store.open(path) as store:
        [row, _] = standing.rows_of(problems, store)
    why = {GangError: "the ranks did not start", ZeroDivisionError: "ZeroDivisionError: a bug"}
    assert row.told.endswith(f": {why.get(type(error), 'no config passed')}")
    second = Host(path)
    assert second.run(*problems) == ["done", "done"] and second.started == [16]


def test_a_database_that_goes_away_is_no_failure_of_the_problem(path: str) -> None:
    def lost(m: int) -> str:
        raise StoreError("database x cannot be reached")

    host = Host(path, lost)
    assert host.run(asked(16)) == ["waiting"]
    assert host.told[-1].startswith("left: ") and "cannot be reached" in host.told[-1]


def test_the_problem_of_a_dead_process_is_taken_over(url: str) -> None:
    lease(url, asked(16), dead_lease())
    assert states(url, asked(16)) == ["waiting"]
    assert Host(url).run(asked(16)) == ["done"]


def test_a_host_that_falls_silent_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "SILENT_SECONDS", 0.2)
    lease(url, asked(16), far_lease())
    assert states(url, asked(16)) == ["running"]
    assert Host(url).run(asked(16)) == ["done"]


def test_a_host_that_beats_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "SILENT_SECONDS", 1.0)
    far, host = far_lease(), Host(url)
    study = lease(url, asked(16), far)
    with ThreadPoolExecutor(1) as pool, Store.open(url) as store:
        running = pool.submit(host.run, asked(16))
        for _ in range(30):  # a second and a half
            assert store.beat(study, far)
            time.sleep(0.05)
        assert not running.done() and host.started == []
        store.release(study, far)
        assert running.result() == ["done"]


def test_other_devices_and_wider_problems_are_left(path: str) -> None:
    problems = [asked(16, 8), asked(32, device=OTHER.device), asked(64), asked(96, device=FOUR_GPUS.device)]
    assert Host(path, machine=FOUR_GPUS).run(*problems) == ["waiting", "waiting", "done", "done"]


def test_each_kind_of_host_has_its_own_result(path: str) -> None:
    assert Host(path).run(asked(16)) == ["done"]
    other = Host(path, machine=OTHER)
    assert other.run(asked(16)) == ["done", "done"] and other.started == [16]


def test_stop_ends_all_hosts_and_a_new_start_resumes(url: str) -> None:
    problems, go = [asked(16), asked(32)], threading.Event()
    busy, idle = Host(url, lambda m: DONE if go.wait(60) else ""), Host(url)
    with ThreadPoolExecutor(2) as pool, Store.open(url) as store:
        working = pool.submit(busy.run, problems[0])
        assert busy.at_work.wait(60)
        waiting = pool.submit(idle.run, *problems)
        while states(url, *problems) != ["running", "done"]:
            assert not waiting.done()
        assert standing.stop(standing.rows_of(problems, store), store) == 1
        go.set()
        for each in (working, waiting):
            with pytest.raises(FleetError, match="stopped"):
                each.result()
    assert states(url, *problems) == ["stopped", "done"]
    assert Host(url).run(*problems) == ["done", "done"]


def test_an_interrupt_ends_the_worker_and_its_lease(path: str) -> None:
    def interrupt(m: int) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Host(path, interrupt).run(asked(16), asked(32))
    assert states(path, asked(16), asked(32)) == ["waiting", "waiting"]


class Killed(BaseException):
    """As by SIGKILL: nothing is cleaned up."""


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Kills this process, as far as leases tell: they name a child, which dies; after that, the next one."""
    children: list[subprocess.Popen[bytes]] = []
    made_before = Lease.new

    def start() -> None:
        children.append(subprocess.Popen(["sleep", "1000"]))

    def new(token: str = "") -> Lease:
        pid = children[-1].pid
        return dataclasses.replace(made_before(token), pid=pid, started=leases._started(pid))

    def end() -> None:
        children[-1].kill()
        children[-1].wait()

    monkeypatch.setattr(Lease, "new", new)
    start()
    yield lambda: (end(), start())[0]
    end()


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_transaction_nothing_is_lost_and_nothing_is_done_twice(
    path: str, monkeypatch: pytest.MonkeyPatch, kill: Callable[[], None], when: str
) -> None:
    """One run after the other dies a transaction later than the one before, until one comes to its end."""
    write, left = Database.write, [0]

    def counted(self: Database, *arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0 or (left[0] == 0 and when == "before"):  # the dead write nothing more
            raise Killed
        found = write(self, *arguments, **named)
        if left[0] == 0:
            raise Killed
        return found

    monkeypatch.setattr(Database, "write", counted)
    problems = [asked(16), asked(32)]
    for transactions in range(1, 100):
        url = f"{path}{transactions}"
        host, second = (Host(url, lambda m: NOT_MEASURED if m == 16 else DONE) for _ in range(2))
        left[0] = transactions
        try:
            host.run(*problems)
        except Killed:
            kill()
        else:
            assert transactions > 8, "two studies, their leases and ends"
            return
        left[0] = 1000
        assert second.run(*problems) == ["failed", "done"]
        with Store.open(url) as store:
            assert len(store.studies()) == 2
        assert host.started.count(32) + second.started.count(32) <= 2, "a death costs one attempt at most"


def test_other_versions_results_do_not_count(path: str) -> None:
    with Store.open(path) as store:
        for name, value in (("torch", "1.0"), ("source_hash", "0" * 16), ("driver", "1")):
            begun(store, WORKLOAD, Task(asked(16).problem, EIGHT_GPUS), **{name: value})
        assert [(row.device, row.state) for row in rows_of([asked(16)], store)] == [("NVIDIA H200", "waiting")], (
            "a driver is the host's"
        )


def test_a_problem_that_was_only_verified_is_still_to_be_searched(path: str) -> None:
    searched, verified = asked(16), asked(16, search=False)
    assert Host(path).run(verified) == ["done"]
    with Store.open(path) as store:
        assert [row.state for row in rows_of([searched, verified], store)] == ["waiting", "done"]
    Host(path).run(asked(32))
    with Store.open(path) as store:
        assert [row.state for row in rows_of([asked(32, search=False)], store)] == ["done"], "a search tells as much"
