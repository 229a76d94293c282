"""The loop with the local engine over quick fakes: everything is done once, whoever dies, whoever shares the list."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from small_fleet import DONE, FAILED, LOST, MI300X, Tunings, far_lease, host, m_of, wanted

from autotune.db import Lease, Store, lease
from autotune.db.engines.database import Database
from autotune.db.fleet_records import Counts, HostRecord
from autotune.fleet import attempt, local
from autotune.fleet.driver import drive
from autotune.fleet.local import LocalEngine


class Killed(BaseException):
    """As by SIGKILL: nothing is cleaned up."""


def run(url: str, tunings: Tunings, name: str = "a", at: HostRecord | None = None) -> Counts:
    engine = LocalEngine(url, at or host(name), tunings.start)
    try:
        with Store.open(url) as store:
            drive(store.fleet, engine)
            return store.fleet.counts()
    finally:
        engine.close()


def add(url: str, *sizes: int) -> None:
    with Store.open(url) as store:
        store.fleet.add(wanted(m) for m in sizes)


def test_all_problems_are_tuned_once_and_a_second_run_tunes_nothing(url: str) -> None:
    add(url, 1, 2, 3)
    tunings = Tunings()
    assert run(url, tunings) == Counts(done=3)
    assert sorted(tunings.started) == [1, 2, 3]
    assert set(tunings.urls) == {url}
    assert run(url, tunings) == Counts(done=3)
    assert len(tunings.started) == 3


def test_commands_that_share_a_list_never_tune_a_problem_twice(url: str) -> None:
    add(url, *range(1, 17))
    each = [Tunings() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run, url, tunings, f"host{i}") for i, tunings in enumerate(each)]
        assert all(done.result().done == 16 for done in runs), "each waits for the others' last problem"
    assert Counter(m for tunings in each for m in tunings.started) == dict.fromkeys(range(1, 17), 1)


def test_a_failure_waits_for_another_host(path: str) -> None:
    add(path, 1, 2)
    assert run(path, Tunings(lambda m: FAILED if m == 1 else DONE)) == Counts(wanted=1, done=1)
    second = Tunings()
    assert run(path, second, "b") == Counts(done=2)
    assert second.started == [1]


def test_a_problem_that_fails_everywhere_is_set_aside_and_the_rest_is_done(path: str) -> None:
    add(path, 1, 2, 3)
    fails = Tunings(lambda m: FAILED if m == 2 else DONE)
    run(path, fails)
    assert run(path, fails, "b") == Counts(done=2, failed=1)
    assert Counter(fails.started) == {1: 1, 2: 2, 3: 1}


def test_a_lost_tuning_is_repeated_here(path: str) -> None:
    add(path, 1)
    ends = iter([LOST, LOST, DONE])
    assert run(path, Tunings(lambda m: next(ends))) == Counts(done=1)


def test_a_tuning_that_cannot_start_is_a_failure(path: str) -> None:
    add(path, 1)

    def refuse(wanted: Any, url: str) -> Any:
        raise OSError("no more processes")

    engine = LocalEngine(path, host("a"), refuse)
    with Store.open(path) as store:
        drive(store.fleet, engine)
        assert store.fleet.snapshot().unlucky[0].reason == "a: no more processes"
    engine.close()


def test_problems_of_other_kinds_and_widths_are_left(path: str) -> None:
    with Store.open(path) as store:
        store.fleet.add([wanted(1), wanted(2, world_size=8), wanted(3, kind=MI300X)])
    assert run(path, Tunings(), at=host("a", gpus=4)) == Counts(wanted=2, done=1)


def test_two_commands_with_gpus_of_one_host_get_problems_as_wide_as_their_own(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(name: str, url: str) -> HostRecord:
        return host(name, len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))

    monkeypatch.setattr(local, "examined", looked_at)
    with Store.open(url) as store:
        store.fleet.add([wanted(1, world_size=4)])
        names = []
        for shown in ("0,1,2,3", "4,5"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
            [here] = (engine := LocalEngine(url)).hosts()
            engine.close()
            names.append(store.fleet.register(here).name)
        assert {each.name: each.gpus for each in store.fleet.hosts()} == dict(zip(names, (4, 2), strict=True))
        assert store.fleet.claim(names[1], Lease.new()) is None
        assert store.fleet.claim(names[0], Lease.new()) is not None


def test_a_broken_host_gets_nothing(path: str) -> None:
    add(path, 1)
    assert run(path, Tunings(), at=host("a", broken="links: down")) == Counts(wanted=1)


def test_stop_ends_what_is_at_work(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "BEAT_SECONDS", 0.01)
    add(path, 1, 2)
    tunings = Tunings(lambda m: None)
    with ThreadPoolExecutor(1) as pool, Store.open(path) as store:
        running = pool.submit(run, path, tunings)
        while not (under_way := store.fleet.running()) or not under_way[0].progress:
            assert not running.done()
        store.fleet.stop()
        assert running.result() == Counts(stopped=2)
    assert tunings.made[0].stopped
    with Store.open(path) as store:
        store.fleet.resume()
    assert run(path, Tunings()) == Counts(done=2)


def test_an_interrupted_command_gives_its_problem_back(path: str) -> None:
    add(path, 1)
    tunings = Tunings(lambda m: None)
    engine = LocalEngine(path, host("a"), tunings.start)

    def interrupt() -> None:
        if tunings.made:
            raise KeyboardInterrupt

    with Store.open(path) as store:
        with pytest.raises(KeyboardInterrupt):
            drive(store.fleet, engine, interrupt)
        engine.close()
        assert store.fleet.counts() == Counts(wanted=1)
        [only] = store.fleet.attempts(0)
        assert (only.state, only.reason) == ("stopped", "interrupted")


def test_a_tuning_that_was_given_up_is_stopped(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host was cut off for a minute; another one may have the problem by now."""
    monkeypatch.setattr(attempt, "BEAT_SECONDS", 0.01)
    add(path, 1)
    tunings = Tunings(lambda m: None)
    with ThreadPoolExecutor(1) as pool, Store.open(path) as store:
        store.fleet.register(host("a"))
        working = pool.submit(attempt.attempt, path, "a", start=tunings.start)
        while not (under_way := store.fleet.running()):
            assert not working.done()
        while not store.fleet.lose(under_way[0].attempt, under_way[0].held, "silent"):
            under_way = store.fleet.running()
        assert working.result()
        assert tunings.made[0].stopped
        assert store.fleet.counts() == Counts(wanted=1)


def test_a_silent_host_is_given_up_and_its_problem_done_here(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SILENT_SECONDS", 0.3)
    with Store.open(path) as store:
        store.fleet.register(host("far"))
        store.fleet.add([wanted(1)])
        assert store.fleet.claim("far", far_lease()) is not None
        tunings = Tunings()
        assert run(path, tunings) == Counts(done=1)
        assert [each.state for each in store.fleet.attempts(0)] == ["lost", "done"]


def test_a_host_that_still_beats_is_waited_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SILENT_SECONDS", 1.5)
    held = far_lease()
    with ThreadPoolExecutor(1) as pool, Store.open(path) as store:
        store.fleet.register(host("far"))
        store.fleet.add([wanted(1)])
        claim = store.fleet.claim("far", held)
        assert claim is not None
        running = pool.submit(run, path, Tunings())
        for _ in range(40):  # two seconds
            assert store.fleet.beat(claim.attempt, held, "searching") == "running"
            threading.Event().wait(0.05)
        assert not running.done()
        store.fleet.end(claim.attempt, held, "done")
        assert running.result() == Counts(done=1)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """This process, which can be killed: its leases are those of a child, which dies; after that, of the next one."""
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        children.append(subprocess.Popen(["sleep", "1000"]))

    def new(token: str = "") -> Lease:
        made = made_before(token)
        return dataclasses.replace(made, pid=children[-1].pid, started=lease._started(children[-1].pid))

    made_before = Lease.new
    monkeypatch.setattr(Lease, "new", new)
    start()

    def kill() -> None:
        children[-1].kill()
        children[-1].wait()
        start()

    yield kill
    children[-1].kill()
    children[-1].wait()


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_transaction_nothing_is_lost_and_nothing_is_done_twice(
    path: str, monkeypatch: pytest.MonkeyPatch, process: Callable[[], None], when: str
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
    for transactions in range(1, 100):
        url, tunings, left[0] = f"{path}{transactions}", Tunings(lambda m: FAILED if m == 1 else DONE), 1000
        add(url, 1, 2)
        left[0] = transactions
        died = False
        try:
            run(url, tunings)
        except Killed:
            died = True
            process()
        left[0] = 1000
        run(url, tunings)
        assert run(url, tunings, "b") == Counts(done=1, failed=1)
        with Store.open(url) as store:
            ends = Counter((m_of(each.problem.wanted), each.state) for each in store.fleet.attempts(0))
        assert {key: count for key, count in ends.items() if key[1] != "lost"} == {(1, "failed"): 2, (2, "done"): 1}
        assert sum(ends.values()) <= 4, "one death costs one attempt at most"
        if not died:
            assert transactions == 6, "a registration, two claims and their ends, and then no death"
            return
